"""`teka audit`: what a model makes of images that move."""

import argparse
import contextlib
import math
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import teka.audit
from teka.audit.adapters import FORMS, load
from teka.audit.adapters.case import AuditCase, make_case
from teka.audit.movement import TRANSLATION_MODES
from teka.audit.page.pages import write_audit_page
from teka.audit.page.text import audit_text
from teka.audit.procedures import PRESETS
from teka.audit.report import AuditReport
from teka.audit.settings import PARTS, AuditSettings
from teka.audit.shifts import axis_shifts, square_shifts
from teka.audit.statistics.metrics import NUMBERS
from teka.checks import check_name
from teka.cli.own_models import OWN_LOADERS
from teka.cli.parser import Option, Parser, command
from teka.cli.terminal import progress_bar
from teka.errors import require, wrong_value
from teka.files import check_output, make_directory, write_json

SHIFT_SETS = ("square", "axes", "dy", "dx")
# Shares, the higher the better.
METRICS = tuple(name for name, number in NUMBERS.items() if number.is_share and number.better == "higher")
NOT_PASSED = 1
# Fields of the settings that are options by their own names and words; others are declared here, of several options.
SETTINGS = ("background", "output", "stride", "seed", "batch_size", "confidence", "num_resamples", "num_examples")
Size = int | tuple[int, int] | None
FORMS_OF_MODELS = "; ".join((*(one.form for one in OWN_LOADERS), *FORMS))
MODEL_HELP = f"One of: {FORMS_OF_MODELS}. Nothing is unpickled; module.py is executed, with all your rights."


def _add_modes(parser: Parser) -> None:
    words = f"How images move, circular by default, several one after the other: {', '.join(TRANSLATION_MODES)}."
    parser.add_argument("--mode", dest="modes", nargs="+", action="extend", type=str, metavar="MODE", help=words)


def _add_settings(parser: Parser) -> None:
    others: set[str | int] = {name for name in AuditSettings.__dataclass_fields__ if name not in SETTINGS}
    parser.add_class_arguments(AuditSettings, skip=others)


# Data, shifts, settings and results.
OPTIONS: tuple[Callable[[Parser], object], ...] = (
    Option(
        "--data",
        str,
        "Data set with test images: digits, mnist, fashion-mnist, cifar10, a folder of pictures or an .npz file.",
        required=True,
    ),
    Option("--data_dir", str | None, "Folder with the data set's files."),
    Option("--images", int, "Test images at most, drawn by --seed; 0 takes all.", 500),
    Option("--image_size", Size, "Size at which the data are loaded, in pixels."),
    Option("--input_size", Size, "Size of the model's images, if it takes any."),
    Option(
        "--shift_before_resize",
        bool,
        "Shift images as the data have them, then resize them; without it they are shifted by the model's pixels.",
    ),
    _add_modes,
    Option("--max_shift", int | float | None, "Largest shift in pixels, by default 8, or a quarter of the side."),
    Option("--shifts", str, f"Which shifts: {', '.join(SHIFT_SETS)}.", "square"),
    Option("--step", int | float, "Pixels from shift to shift; below 1 if sub-pixel.", 1),
    Option(
        "--placed_size",
        Size,
        "Size of the images that modes crop and canvas move, by default with room for every shift.",
    ),
    Option("--ignore_labels", bool, "Leave out accuracy, as for data of other classes than the model's."),
    Option("--layers", str, "Modules to look at, all by default.", nargs="+", metavar="NAME"),
    Option("--budget", float | None, "Seconds for each model; shifts go from coarse to fine."),
    Option("--device", str | None, "Where the model runs, such as cuda; the CPU by default."),
    Option("--preset", str | None, f"A procedure of the literature to add: {', '.join(PRESETS)}."),
    _add_settings,
    Option("--resume", str | None, "Folder for the state of measurements, which resume from what is in it."),
    Option("--html", str | None, "Page to write, one file with everything in it."),
    Option("--json", str | None, "Report to write as JSON."),
    Option("--debug", bool, "Print the tracebacks of parts that failed."),
)


@command(
    Option("model", str, MODEL_HELP, metavar="MODEL"),
    *OPTIONS,
    Option("--skip", str, f"Parts to leave out: {', '.join(PARTS)}.", [], nargs="+", metavar="PART"),
    Option("--fail_under", float | None, "Answer 1 if --metric is below this share in any mode."),
    Option("--metric", str, f"What is held to it: {', '.join(METRICS)}.", "consistency"),
    examples=(
        "teka audit digits --data digits --html digits.html",
        "teka audit runs/mnist --data mnist --data-dir data --mode circular --mode zero --max-shift 4",
        "teka audit google/vit-base-patch16-224 --data pictures --images 200 --mode crop --json vit.json",
        "teka audit model.onnx --data pictures --budget 600 --resume runs/audit",
        "teka audit model.py:make --data images.npz --fail-under 0.95 --metric worst_shift_accuracy",
    ),
)
def audit(options: argparse.Namespace, command: str) -> int:
    """Move test images and see what a model makes of it.

    Accuracy and consistency with intervals, the layer that breaks first, and what could mislead. The answer is 1 where
    --fail-under is not reached, 2 for bad input.
    """
    check_name("metric", options.metric, METRICS)
    if options.fail_under is not None and not 0 <= options.fail_under <= 1:
        raise wrong_value("fail_under", options.fail_under, "a share from 0 to 1")
    for part in options.skip:
        check_name("skip", part, PARTS)
    settings = make_settings(options, tuple(part for part in PARTS if part not in options.skip))
    check_files(options)
    state = None if options.resume is None else make_directory("resume", options.resume)
    case = read_case(options.model, options, settings)
    print(case.description)
    report = audit_case(case, command, state, debug=options.debug)
    write_results([report], report.to_dict(), options, audit_text([report]))
    passed = options.fail_under is None or passes(report, options.metric, options.fail_under)
    return 0 if passed else NOT_PASSED


def passes(report: AuditReport, metric: str, least: float) -> bool:
    """Whether a share of `METRICS` is reached in every mode, and nothing makes the numbers void; says so."""
    value = report.number(metric)
    void = [caveat.name for caveat in report.caveats if caveat.severity == "invalidates"]
    if void:
        print(f"not passed: the numbers do not mean what they say ({', '.join(void)})")
        return False
    verdict = "passed" if value >= least else "not passed"
    print(f"{verdict}: {metric} is {100 * value:.2f} %, and {100 * least:.2f} % is asked for")
    return value >= least


def make_settings(options: argparse.Namespace, parts: tuple[str, ...]) -> AuditSettings:
    """The settings that `OPTIONS` ask for, with the parts to do."""
    return AuditSettings(
        shifts=shift_set(options.shifts, options.max_shift, options.step),
        modes=tuple(options.modes or ("circular",)),
        parts=parts,
        layers=options.layers,
        budget_seconds=options.budget,
        device=options.device,
        preset=options.preset,
        **{name: getattr(options, name) for name in SETTINGS},
    )


def shift_set(
    name: str, max_shift: int | float | None, step: int | float
) -> tuple[tuple[int | float, ...], ...] | None:
    """The set of shifts (dy, dx) of one of `SHIFT_SETS`, in steps up to a largest; None leaves it to the audit."""
    check_name("shifts", name, SHIFT_SETS)
    if max_shift is None:
        if name != SHIFT_SETS[0] or step != 1:
            raise wrong_value("max_shift", None, "given with --shifts or --step")
        return None
    if not 0 < step < math.inf:
        raise wrong_value("step", step, "a positive number of pixels")
    if not 0 <= max_shift < math.inf:
        raise wrong_value("max_shift", max_shift, "a number of pixels of at least 0")
    count = round(max_shift / step)
    if abs(count * step - max_shift) > 1e-9:
        raise wrong_value("max_shift", max_shift, f"a multiple of the step, {step}, of at least 0")
    steps = square_shifts(count) if name == "square" else axis_shifts(count)
    if name in ("dy", "dx"):
        other = 1 if name == "dy" else 0
        steps = tuple(one for one in steps if one[other] == 0)
    return tuple(tuple(_whole(round(part * step, 9)) for part in one) for one in steps)


def _whole(value: int | float) -> int | float:
    return int(value) if float(value).is_integer() else value


def check_files(options: argparse.Namespace) -> None:
    """Check that results can be written, before anything is measured; folders are made."""
    given = {"html": options.html, "json": options.json}
    paths = {argument: Path(path) for argument, path in given.items() if path is not None}
    for argument, path in paths.items():
        make_directory(argument, path.parent)
        check_output(argument, path)
    if len({path.resolve() for path in paths.values()}) < len(paths):
        raise wrong_value("json", options.json, "another file than that of --html")
    if options.html is not None:
        require("jinja2", "reports need", "teka[report]")


def write_results(
    reports: Sequence[AuditReport], content: Mapping[str, object], options: argparse.Namespace, text: str
) -> None:
    """Write the page and the JSON that were asked for, print text and tracebacks; what fails costs only itself."""
    with contextlib.ExitStack() as results:  # calls each of these, the last one first, whatever the others raise
        results.callback(print, text)
        if options.html is not None:
            results.callback(lambda: print(f"written: {write_audit_page(reports, options.html)}"))
        if options.json is not None:
            results.callback(lambda: print(f"written: {write_json(Path(options.json), content)}"))
        for failure in (failure for report in reports for failure in report.failures if options.debug):
            results.callback(sys.stderr.write, f"{failure.part}:\n{failure.traceback or failure.message}\n")


def read_case(model: str, options: argparse.Namespace, settings: AuditSettings) -> AuditCase:
    """A model and its images, by `OPTIONS`."""
    subject = load(
        model, input_size=options.input_size, device=options.device, data_dir=options.data_dir, loaders=OWN_LOADERS
    )
    return make_case(
        subject,
        options.data,
        settings,
        data_dir=options.data_dir,
        image_size=options.image_size,
        num_images=options.images or None,
        placed_size=options.placed_size,
        shift="before" if options.shift_before_resize else "after",
        labelled=not options.ignore_labels,
    )


def audit_case(case: AuditCase, command: str, state: Path | None, *, debug: bool) -> AuditReport:
    """Audit, with a bar that shows the part and how far it is; the state is kept in a folder, if any."""
    name = case.subject.name
    try:
        with progress_bar() as show:
            return teka.audit.audit(
                case.function,
                case.images,
                case.labels,
                settings=case.settings,
                name=name,
                class_names=case.class_names,
                model_facts=case.model_facts,
                data_facts=case.data_facts,
                caveats=case.caveats,
                checkpoint=state,
                progress=lambda part, done, total, left: show(f"{name}, {part}", done, total, f"{left:.0f} s left"),
                command=command,
            )
    except ValueError:
        if debug:
            traceback.print_exc()
        raise
