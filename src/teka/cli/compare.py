"""`teka compare`: models over the same images, moved alike."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace

from teka.audit.adapters.case import AuditCase
from teka.audit.measure.responses import Responses
from teka.audit.page.text import audit_text, comparison_text
from teka.audit.report import AuditReport, make_examples
from teka.audit.settings import PARTS
from teka.audit.statistics.comparison import compare_responses
from teka.cli.audit import MODEL_HELP, OPTIONS, audit_case, check_files, make_settings, read_case, write_results
from teka.cli.parser import Option, command
from teka.codec import encode
from teka.errors import wrong_value
from teka.files import make_directory


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
    """Audit models with the same images and shifts, and compare the first with each of the others image by image.

    Differences have intervals and p-values.
    """
    if len(options.models) < 2 or len(set(options.models)) < len(options.models):
        raise wrong_value("models", options.models, "two or more models, each once")
    # What is beside the shifts is for the page alone.
    settings = make_settings(options, PARTS if options.html is not None else ())
    state = check_files(options)
    cases = [read_case(model, options, settings) for model in options.models]
    check_same_sizes(cases)
    print(*(case.description for case in cases), sep="\n")
    reports = []
    for number, case in enumerate(cases):
        folder = None if state is None else make_directory("resume", state / str(number))
        report = audit_case(case, command, folder, debug=options.debug)
        if len(report.metrics) < len(settings.modes):
            raise ValueError(f"{report.name}: {'; '.join(failure.message for failure in report.failures)}")
        reports.append(report)
    answers = [[packed.unpack() for packed in report.responses] for report in reports]
    reports = share_examples(cases, reports, answers)
    text = [audit_text(reports)]
    comparisons: list[dict[str, object]] = []
    for report, others in zip(reports[1:], answers[1:], strict=True):
        for first, second in zip(answers[0], others, strict=True):
            found = compare_responses(first, second, **settings.intervals)
            text += ["", comparison_text(found, reports[0].name, report.name)]
            comparisons.append({"first": reports[0].name, "second": report.name, **encode(found)})
    content = {"reports": [report.to_dict() for report in reports], "comparisons": comparisons}
    write_results(reports, content, options, "\n".join(text))


def check_same_sizes(cases: Sequence[AuditCase]) -> None:
    """Check that a shift by a pixel is the same for all models."""
    sizes = {case.subject.name: tuple(case.images.shape[2:]) for case in cases}
    if len(set(sizes.values())) > 1:
        shown = ", ".join(f"{name}: {size}" for name, size in sizes.items())
        expected = "one size, for a pixel of a shift is another step for each; --shift-before-resize, or --input-size"
        raise wrong_value("the size of the models' images", shown, expected)


def share_examples(
    cases: Sequence[AuditCase], reports: Sequence[AuditReport], answers: Sequence[Sequence[Responses]]
) -> list[AuditReport]:
    """The reports with the same images as examples, so that every model's answers to each of them can be shown."""
    shared = dict.fromkeys((example.mode, example.index) for report in reports for example in report.examples)
    changed = []
    for case, report, of_model in zip(cases, reports, answers, strict=True):
        examples = []
        for one in of_model:
            indices = [index for mode, index in shared if mode == one.movement.mode]
            examples += make_examples(case.function, case.images, one, indices, case.settings)
        changed.append(replace(report, examples=tuple(examples)))
    return changed
