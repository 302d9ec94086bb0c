"""`teka compare`: models over the same images, moved alike."""

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from teka.audit.adapters.case import AuditCase, is_trained_on, load_images
from teka.audit.function import evaluating, module_of
from teka.audit.measure.responses import Responses
from teka.audit.page.text import audit_text, comparison_text
from teka.audit.report import AuditReport, make_examples
from teka.audit.settings import PARTS
from teka.audit.statistics.ranking import Pair, compare_every_two, disagreement
from teka.cli.audit import (
    MODEL_HELP,
    OPTIONS,
    audit_case,
    check_files,
    make_settings,
    read_case,
    read_model,
    write_results,
)
from teka.cli.parser import Option, command
from teka.codec import encode
from teka.errors import one_line, wrong_argument, wrong_value
from teka.files import make_directory
from teka.reporting.tables import LONGEST_TEXT


@command(
    Option("models", str, f"Two or more. {MODEL_HELP}", nargs="+", metavar="MODEL"),
    *OPTIONS,
    examples=(
        "teka compare runs/absolute runs/rotation --data mnist --data-dir data --html compared.html",
        "teka compare digits vit-folder --data digits --images 0 --mode zero --max-shift 4",
        "teka compare a.onnx b.onnx --data pictures --shift-before-resize --resume runs/compare",
    ),
)
def compare(options: Namespace, command: str) -> None:
    """Audit models with the same images and shifts, and compare every two of them image by image.

    It says who wins, as far as that can be told; differences have intervals and p-values.
    """
    if len(options.models) < 2 or len(set(options.models)) < len(options.models):
        raise wrong_value("models", options.models, "two or more models, each once")
    # What is beside the shifts is for the page alone.
    settings = make_settings(options, PARTS if options.html is not None else ())
    state = check_files(options)
    read = cache(
        load_images
    )  # so that pictures are decoded, and kept, once for all models that see the same
    subjects = [read_model(model, options) for model in options.models]
    names = [subject.name for subject in subjects]
    told = [
        subject if names.count(subject.name) == 1 else replace(subject, name=model)
        for model, subject in zip(options.models, subjects, strict=True)
    ]
    # All models are shown the same images, none of which any of them was trained on.
    held_out = any(is_trained_on(subject, options.data, options.data_dir) for subject in subjects)
    cases = [read_case(subject, options, settings, read, held_out) for subject in told]
    check_comparable(cases)
    print(*(one_line(case.description, LONGEST_TEXT) for case in cases), sep="\n")
    folders = [
        None if state is None else make_directory("resume", state / str(at))
        for at in range(len(cases))
    ]
    reports = [
        audit_modes(case, command, folder, debug=options.debug)
        for case, folder in zip(cases, folders, strict=True)
    ]
    write_comparison(cases, reports, options)


def audit_modes(case: AuditCase, command: str, state: Path | None, *, debug: bool) -> AuditReport:
    """Audit in every mode, for what could not be measured of one cannot be compared."""
    report = audit_case(case, command, state, debug=debug)
    if len(report.metrics) < len(case.settings.modes):
        raise ValueError(
            f"{report.name}: {'; '.join(failure.message for failure in report.failures)}"
        )
    return report


def write_comparison(
    cases: Sequence[AuditCase],
    reports: Sequence[AuditReport],
    options: Namespace,
    judge: Callable[
        [Sequence[AuditReport], Sequence[Pair]], Sequence[AuditReport]
    ] = lambda reports, _: reports,
    **more: object,
) -> None:
    """Compare every two, and write what was asked for; what is judged of the pairs stands in the reports."""
    answers = list(
        zip(*([packed.unpack() for packed in report.responses] for report in reports), strict=True)
    )
    names = [report.name for report in reports]
    of_modes = [compare_every_two(of_mode, **cases[0].settings.intervals) for of_mode in answers]
    pairs = [pair for of_mode in of_modes for pair in of_mode]
    reports = judge(share_examples(cases, reports, answers), pairs)
    comparisons = [
        {
            "first": names[pair.first],
            "second": names[pair.second],
            "invalid": [
                reports[at].name for at in (pair.first, pair.second) if reports[at].invalid
            ],
            **encode(pair.comparison),
        }
        for pair in pairs
    ]
    content = {
        "reports": [report.to_dict() for report in reports],
        "comparisons": comparisons,
        **more,
    }
    text = [audit_text(reports), *(comparison_text(of_mode, reports) for of_mode in of_modes)]
    write_results(reports, content, options, "\n\n".join(text), pairs)


def check_comparable(cases: Sequence[AuditCase]) -> None:
    """Check that a shift by a pixel is the same for all models, and the number of a class."""
    sizes = [tuple(case.images.shape[2:]) for case in cases]
    if len(set(sizes)) > 1:
        shown = ", ".join(
            f"{case.subject.name}: {size}" for case, size in zip(cases, sizes, strict=True)
        )
        expected = "one size, for a pixel of a shift is another step for each; --shift-before-resize, or --input-size"
        raise wrong_value("the size of the models' images", shown, expected)
    labelled = [(case.subject.name, case.labels) for case in cases if case.labels is not None]
    for name, labels in labelled:
        if not torch.equal(labels, labelled[0][1]):
            expected = (
                f"that of {labelled[0][0]}: answers are compared by the numbers of their classes"
            )
            raise wrong_argument(f"the order of the classes of {name}", "another", expected)


def share_examples(
    cases: Sequence[AuditCase],
    reports: Sequence[AuditReport],
    answers: Sequence[Sequence[Responses]],
) -> list[AuditReport]:
    """The reports with the same examples in each mode, to which every model's answers can be shown.

    They are the images on which the models disagree at most shifts; then, to as many as asked for, those that any model
    had as its own.
    """
    chosen: list[list[int]] = []
    for of_mode in answers:
        apart, number = torch.zeros(0), cases[0].settings.num_examples
        if all(one.predictions is not None for one in of_mode):
            apart = disagreement(of_mode).sum(dim=0)
        order = [
            image
            for image in apart.argsort(descending=True, stable=True).tolist()
            if apart[image] > 0
        ]
        mode = of_mode[0].movement.mode
        own = [
            example.index
            for report in reports
            for example in report.examples
            if example.mode == mode
        ]
        chosen.append(list(dict.fromkeys([*order, *own]))[:number])
    changed = []
    for at, (case, report) in enumerate(zip(cases, reports, strict=True)):
        examples = []
        with evaluating(module_of(case.function)):
            for of_mode, indices in zip(answers, chosen, strict=True):
                examples += make_examples(
                    case.function, case.images, of_mode[at], indices, case.settings
                )
        changed.append(replace(report, examples=tuple(examples)))
    return changed
