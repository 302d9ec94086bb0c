"""The command `compare`: several models on the same shifted images."""

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
from teka.cli.app import CommandLine
from teka.cli.audit import audit_case, write_results
from teka.cli.audit_options import AuditOptions, ResultOptions
from teka.codec import encode
from teka.errors import one_line, wrong_argument, wrong_value
from teka.files import make_directory
from teka.reporting.tables import LONGEST_TEXT


def compare(models: list[str], /, *, options: AuditOptions, command: CommandLine) -> None:
    """Audit models on the same shifted images and compare every two of them.

    The comparison says which model wins, or that the difference is not significant. Differences
    have intervals and p-values.

    For example:

        teka compare runs/absolute runs/rotary --data mnist --data-dir data --html compared.html
        teka compare digits vit-folder --data digits --images 0 --mode zero --max-shift 4
        teka compare a.onnx b.onnx --data pictures --shift-before-resize --resume runs/compare

    Args:
        models: Two or more models, as `teka audit` takes them.
    """
    if len(models) < 2 or len(set(models)) < len(models):
        raise wrong_value("models", models, "two or more models, each once")
    results = options.results
    # The stages besides the shifts are only shown on the page.
    settings = options.make_settings(PARTS if results.html is not None else ())
    state = results.check((*models, options.images.data))
    read_images = cache(load_images)  # models with the same preprocessing share their images
    subjects = [options.load_model(model) for model in models]
    names = [subject.name for subject in subjects]
    for index, model in enumerate(models):
        if names.count(names[index]) > 1:
            subjects[index] = replace(subjects[index], name=model)
    # No model sees images that any of the models was trained on.
    images = options.images
    held_out = any(is_trained_on(subject, images.data, images.data_dir) for subject in subjects)
    cases = [options.make_case(subject, settings, read_images, held_out) for subject in subjects]
    check_comparable(cases)
    print(*(one_line(case.description, LONGEST_TEXT) for case in cases), sep="\n", flush=True)
    reports = []
    for index, case in enumerate(cases):
        folder = None if state is None else make_directory("resume", state / str(index))
        reports.append(audit_modes(case, command, folder, debug=results.debug))
    write_comparison(cases, reports, results)


def audit_modes(case: AuditCase, command: str, state: Path | None, *, debug: bool) -> AuditReport:
    """Audit a model. Raise a ValueError if any mode was not measured."""
    report = audit_case(case, command, state, debug=debug)
    if len(report.metrics) < len(case.settings.modes):
        messages = "; ".join(failure.message for failure in report.failures)
        raise ValueError(f"{report.name}: {messages}")
    return report


def write_comparison(
    cases: Sequence[AuditCase],
    reports: Sequence[AuditReport],
    results: ResultOptions,
    judge: Callable[[list[AuditReport], Sequence[Pair]], list[AuditReport]] | None = None,
    **content: object,
) -> None:
    """Compare every two reports and write the results.

    Args:
        cases: Models and images.
        reports: Report of each case.
        results: Files to write.
        judge: Changes the reports, given the pairs that were compared.
        content: Further content of the JSON file.
    """
    responses = [[packed.unpack() for packed in report.responses] for report in reports]
    responses_by_mode = list(zip(*responses, strict=True))
    pairs_by_mode = [
        compare_every_two(mode, **cases[0].settings.intervals) for mode in responses_by_mode
    ]
    pairs = [pair for mode_pairs in pairs_by_mode for pair in mode_pairs]
    reports = share_examples(cases, reports, responses_by_mode)
    if judge is not None:
        reports = judge(reports, pairs)
    comparisons = []
    for pair in pairs:
        both = (reports[pair.first], reports[pair.second])
        comparisons.append(
            {
                "first": both[0].name,
                "second": both[1].name,
                "invalid": [report.name for report in both if report.invalid],
                **encode(pair.comparison),
            }
        )
    content = {
        "reports": [report.to_dict() for report in reports],
        "comparisons": comparisons,
        **content,
    }
    texts = [audit_text(reports)]
    texts += [comparison_text(mode_pairs, reports) for mode_pairs in pairs_by_mode]
    write_results(reports, content, results, "\n\n".join(texts), pairs)


def check_comparable(cases: Sequence[AuditCase]) -> None:
    """Check that a one-pixel shift and the index of a class mean the same for all models."""
    sizes = [tuple(case.images.shape[2:]) for case in cases]
    if len(set(sizes)) > 1:
        named = zip(cases, sizes, strict=True)
        value = ", ".join(f"{case.subject.name}: {size}" for case, size in named)
        expected = "one size, because a one-pixel shift means something different for each model"
        hint = "Use --shift-before-resize or --input-size."
        raise wrong_argument("the size of the models' images", value, expected, hint)
    labelled = [(case.subject.name, case.labels) for case in cases if case.labels is not None]
    for name, labels in labelled:
        first, first_labels = labelled[0]
        if not torch.equal(labels, first_labels):
            expected = f"that of {first}, because predictions are compared by class index"
            raise wrong_argument(f"the order of the classes of {name}", "another", expected)


def share_examples(
    cases: Sequence[AuditCase],
    reports: Sequence[AuditReport],
    responses_by_mode: Sequence[Sequence[Responses]],
) -> list[AuditReport]:
    """Return the reports with the same example images for every model.

    These are the images on which the models disagree at most shifts. If they are too few, examples
    of the single reports follow.
    """
    chosen: list[list[int]] = []
    for responses in responses_by_mode:
        indices = []
        if all(response.predictions is not None for response in responses):
            num_shifts = disagreement(responses).sum(dim=0)
            order = num_shifts.argsort(descending=True, stable=True).tolist()
            indices = [index for index in order if num_shifts[index] > 0]
        mode = responses[0].movement.mode
        examples = [example for report in reports for example in report.examples]
        indices += [example.index for example in examples if example.mode == mode]
        chosen.append(list(dict.fromkeys(indices))[: cases[0].settings.num_examples])
    changed = []
    for index, (case, report) in enumerate(zip(cases, reports, strict=True)):
        examples = []
        with evaluating(module_of(case.function)):
            for responses, indices in zip(responses_by_mode, chosen, strict=True):
                examples += make_examples(
                    case.function, case.images, responses[index], indices, case.settings
                )
        changed.append(replace(report, examples=tuple(examples)))
    return changed
