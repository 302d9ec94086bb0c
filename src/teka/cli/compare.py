"""`teka compare`: models over the same images, moved alike."""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from teka.audit.adapters.audit_case import AuditCase
from teka.audit.example import make_examples
from teka.audit.measure.measure_responses import measure_responses
from teka.audit.measure.responses import Responses
from teka.audit.page.notation import write_size
from teka.audit.page.number import NUMBER_NAMES, SHARES
from teka.audit.page.text import audit_text
from teka.audit.report import AuditReport
from teka.audit.settings import PARTS
from teka.audit.statistics.comparison import COMPARED_NUMBERS, Comparison, compare_responses
from teka.cli.audit import add_options, check_files, make_settings, model_help, read_case, run_audit, write_results
from teka.cli.parser import Parser
from teka.errors import wrong_value
from teka.files import make_directory

EXAMPLES = """\
  teka compare runs/absolute runs/rotation --data mnist --data-dir data --html compared.html
  teka compare digits vit-folder --data digits --images 0 --mode zero --max-shift 4
  teka compare a.onnx b.onnx --data pictures --shift-before-resize --resume runs/compare
"""


def make_parser() -> Parser:
    """Options of the command."""
    description = (
        "Audit models with the same images and shifts, and compare the first with each of the others image by image: "
        "differences with intervals, and p-values."
    )
    parser = Parser("teka compare", description, EXAMPLES)
    parser.add_argument("models", nargs="+", type=str, metavar="MODEL", help=f"Two or more. {model_help()}")
    add_options(parser)
    parser.add_argument(
        "--resume", type=str | None, help="Folder for the state of the measurements; with some in it, it goes on."
    )
    return parser


def main(options: argparse.Namespace, command: str) -> None:
    """Audit each model, print the differences and write the files."""
    if len(options.models) < 2 or len(set(options.models)) < len(options.models):
        raise wrong_value("models", options.models, "two or more models, each once")
    # What is beside the shifts is for the page alone.
    settings = make_settings(options, parts=PARTS if options.html is not None else ())
    check_files(options)
    cases = [read_case(model, options, settings) for model in options.models]
    check_same_sizes(cases)
    for case in cases:
        print(case.description)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if options.resume is None else make_directory("resume", options.resume)
        measured = [_measure(case, folder / str(number), command) for number, case in enumerate(cases)]
    reports = share_examples(cases, measured)
    text = [audit_text(reports)]
    comparisons: list[dict[str, object]] = []
    for other in range(1, len(cases)):
        for first, second in zip(measured[0][1], measured[other][1], strict=True):
            found = compare_responses(first, second, confidence=settings.confidence, seed=settings.seed)
            names = (reports[0].name, reports[other].name)
            text += ["", comparison_text(found, *names)]
            comparisons.append({"first": names[0], "second": names[1], **found.to_dict()})
    content = {"reports": [report.to_dict() for report in reports], "comparisons": comparisons}
    write_results(reports, content, options, "\n".join(text))


def check_same_sizes(cases: list[AuditCase]) -> None:
    """Check that a shift by a pixel is the same for all models.

    Args:
        cases: The models and their images.

    Raises:
        ValueError: Images of several sizes.
    """
    sizes = [tuple(case.images.shape[2:]) for case in cases]
    if len(set(sizes)) > 1:
        shown = ", ".join(f"{case.subject.name}: {size}" for case, size in zip(cases, sizes, strict=True))
        expected = "one size, for a pixel of a shift is another step for each; --shift-before-resize, or --input-size"
        raise wrong_value("the size of the models' images", shown, expected)


def share_examples(
    cases: Sequence[AuditCase], measured: Sequence[tuple[AuditReport, list[Responses]]]
) -> list[AuditReport]:
    """The reports with the same images as examples, so that every model's answers to each of them can be shown.

    Args:
        cases: The models and their images.
        measured: For each, its report and what it answered in each mode.
    """
    shared: dict[str, dict[int, None]] = {}
    for report, _ in measured:
        for example in report.examples:
            shared.setdefault(example.mode, {})[example.index] = None
    reports = []
    for case, (report, answers) in zip(cases, measured, strict=True):
        settings = case.settings
        examples = [
            example
            for responses in answers
            for example in make_examples(
                case.function,
                case.images,
                responses,
                shared.get(responses.movement.mode, {}),
                batch_size=settings.batch_size,
                device=settings.device,
            )
        ]
        reports.append(replace(report, examples=tuple(examples)))
    return reports


def _measure(case: AuditCase, folder: Path, command: str) -> tuple[AuditReport, list[Responses]]:
    """The audit of a model, and what it answered: read back from the state, not asked for again."""
    make_directory("resume", folder)
    report = run_audit(case, command=command, state=folder)
    if len(report.metrics) < len(case.settings.modes):
        raise ValueError(f"{case.subject.name}: {'; '.join(failure.message for failure in report.failures)}")
    settings = case.settings
    sizes = tuple(case.images.shape[2:])
    answers = [
        measure_responses(
            case.function,
            case.images,
            settings.shifts_for(sizes),
            settings.movement(mode, sizes),
            labels=case.labels,
            output=settings.output,
            stride=settings.stride,
            batch_size=settings.batch_size,
            device=settings.device,
            budget_seconds=settings.budget_seconds,
            checkpoint=folder / f"{mode}.safetensors",
        )
        for mode in settings.modes
    ]
    return report, answers


def comparison_text(comparison: Comparison, first: str, second: str) -> str:
    """The differences of two models as lines of text.

    Args:
        comparison: The differences.
        first: What to call the first model.
        second: What to call the second.
    """
    mode, count = comparison.movement.mode, len(comparison.shifts)
    lines = [
        f"{first} less {second}, mode {mode}, {count} shifts, the same {comparison.num_images:,} images; "
        f"{comparison.confidence:.0%} intervals"
    ]
    names = [name for name in COMPARED_NUMBERS if name in comparison.numbers]
    width = max((len(NUMBER_NAMES[name]) for name in names), default=0)
    for name in names:
        number = comparison.numbers[name]
        parts = (_signed(name, value) for value in (number.value, number.lower, number.upper))
        value, lower, upper = parts
        unit = " points" if name in SHARES else ""
        p_value = "p < 0.001" if number.p_value < 0.001 else f"p = {number.p_value:.3f}"
        lines.append(f"  {NUMBER_NAMES[name]:<{width}}  {value}{unit} ({lower} to {upper}), {p_value}")
    curve = comparison.curves.get("accuracy")
    if curve is not None:
        differing = sum(p_value <= 1 - comparison.confidence for p_value in curve.adjusted_p_values)
        lines.append(f"  Accuracy differs at {differing} of {count} shifts (McNemar's test, adjusted by Holm).")
    return "\n".join(lines)


def _signed(name: str, value: float) -> str:
    written = f"{100 * abs(value):.1f}" if name in SHARES else write_size(abs(value))
    sign = "" if float(written.replace("−", "-")) == 0 else "−" if value < 0 else "+"
    return f"{sign}{written}"
