"""`teka audit`: what a model makes of images that move."""

import contextlib
import dataclasses
import math
import sys
import textwrap
import traceback
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import teka.audit
from teka.audit.adapters import FORMS, Reading, Subject, load
from teka.audit.adapters.case import AuditCase, AuditImages, load_images, make_case, usual_mode
from teka.audit.adapters.reading import Size
from teka.audit.changes import CHANGES
from teka.audit.function import evaluating, module_of, observe_calls
from teka.audit.measure.worst_shift import WorstShift, find_worst_shift
from teka.audit.movement import TRANSLATION_MODES
from teka.audit.page.pages import write_page
from teka.audit.page.summary import badge_svg, summary_markdown
from teka.audit.page.text import audit_text
from teka.audit.procedures import PRESETS
from teka.audit.report import AuditReport
from teka.audit.settings import PARTS, AuditSettings
from teka.audit.shifts import MOST_SHIFTS, MOST_STEPS, axis_shifts, square_shifts
from teka.audit.statistics.metrics import NUMBERS
from teka.audit.statistics.ranking import Pair
from teka.checks import check_name
from teka.cli.child import report_calls
from teka.cli.own_models import OWN_LOADERS
from teka.cli.parser import Option, command, fields_of, progress_bar
from teka.errors import one_line, printable, require, wrong_value
from teka.files import check_output_file, make_directory, resolve_path, write_bytes, write_json
from teka.reporting.formatting import significant
from teka.reporting.tables import LONGEST_TEXT, WIDTH

SHIFT_SETS = ("square", "axes", "dy", "dx")
# Shares, the higher the better.
METRICS = tuple(
    name for name, number in NUMBERS.items() if number.is_share and number.over != "rest"
)
NOT_PASSED = 1
RESULTS = ("html", "json", "markdown", "badge", "out")  # files to write
# What makes nothing of the search for the worst shift alone.
NOT_SEARCHED = (*RESULTS, "fail_under", "precision", "preset", "budget", "resume", "changes")
# Fields of the settings that are options by their own names and words; others are declared here, of several options.
SETTINGS = (
    "background",
    "output",
    "stride",
    "seed",
    "batch_size",
    "confidence",
    "num_resamples",
    "num_examples",
)
FORMS_OF_MODELS = "; ".join((*(one.form for one in OWN_LOADERS), *FORMS))
MODE_HELP = (
    "How images move, several one after the other, by default crop for a folder of pictures that are mostly 128 pixels "
    "wide and high or larger, and circular for all else: "
    f"{', '.join(TRANSLATION_MODES)}."
)
CHANGE_HELP = f"Other changes to measure too: {', '.join(CHANGES)}."
DATA_HELP = "Data set with test images: digits, mnist, fashion-mnist, cifar10, a folder of pictures or an .npz file."
MODEL_HELP = (
    f"One of: {FORMS_OF_MODELS}. module.py is executed, with all your rights; TorchScript and torch.export, which can "
    "run code too, need --trust. Nothing else is executed or unpickled."
)
TRUST_HELP = (
    "Allow TorchScript and torch.export files, which can run any code and read or write any file with your rights. Use "
    "it only for files from a source whose scripts you would run."
)


# Data, shifts, settings and results.
OPTIONS = (
    Option("--data", str, DATA_HELP, required=True),
    Option("--data_dir", str | None, "Folder with the data set's files."),
    Option("--images", int, "Test images at most, drawn by --seed; 0 takes all.", 500),
    Option("--image_size", Size, "Size at which the data are loaded, in pixels."),
    Option("--input_size", Size, "Size of the model's images, if it takes any."),
    Option(
        "--weights",
        str | None,
        "File of weights, safetensors or tensors of torch; or random, as before training.",
    ),
    Option(
        "--num_classes", int | None, "Number of the model's classes, where --weights are given."
    ),
    Option(
        "--mean",
        float,
        "Mean that is taken off intensities in [0, 1], by channel.",
        nargs="+",
        metavar="NUMBER",
    ),
    Option(
        "--std", float, "What they are divided by then, by channel.", nargs="+", metavar="NUMBER"
    ),
    Option(
        "--output_name",
        str | None,
        "Output to measure, if the model has several: its name, or index in a tuple.",
    ),
    Option("--bgr", bool, "The model takes blue, green, red."),
    Option(
        "--shift_before_resize",
        bool,
        "Shift images by the data's pixels, then resize them; else by the model's.",
    ),
    Option("--mode", str, MODE_HELP, dest="modes", nargs="+", action="extend", metavar="MODE"),
    Option(
        "--max_shift",
        int | float | None,
        "Largest shift in pixels, by default 8, or a quarter of the side.",
    ),
    Option("--shifts", str, f"Which shifts: {', '.join(SHIFT_SETS)}.", "square"),
    Option("--step", int | float, "Pixels from shift to shift; below 1 if sub-pixel.", 1),
    Option(
        "--placed_size",
        Size,
        "Size of what modes crop and canvas move, by default with room for every shift.",
    ),
    Option(
        "--ignore_labels",
        bool,
        "Leave out accuracy, as for data of other classes than the model's.",
    ),
    Option("--layers", str, "Modules to look at, all by default.", nargs="+", metavar="NAME"),
    Option(
        "--budget",
        float | None,
        "Seconds for each model, from coarse to fine shifts. A model that hangs is ended.",
    ),
    Option("--trust", bool, TRUST_HELP),
    Option("--device", str | None, "Where the model runs, such as cuda; the CPU by default."),
    Option("--preset", str | None, f"A procedure of the literature to add: {', '.join(PRESETS)}."),
    fields_of(
        AuditSettings,
        skip=[name for name in AuditSettings.__dataclass_fields__ if name not in SETTINGS],
    ),
    Option(
        "--resume",
        str | None,
        "Folder for the state of measurements, which resume from what is in it.",
    ),
    Option("--html", str | None, "Page to write, one file with everything in it."),
    Option("--json", str | None, "Report to write as JSON."),
    Option("--markdown", str | None, "Summary to write as Markdown, as for a pull request."),
    Option("--debug", bool, "Print the tracebacks of parts that failed."),
)


@command(
    Option("model", str, MODEL_HELP, metavar="MODEL"),
    *OPTIONS,
    Option("--badge", str | None, "Badge to write as SVG: the lowest consistency of any mode."),
    Option("--change", str, CHANGE_HELP, [], dest="changes", nargs="+", metavar="CHANGE"),
    Option(
        "--find_worst",
        float | None,
        "Look for the worst shift alone, with this share of what all shifts take.",
    ),
    Option(
        "--skip", str, f"Parts to leave out: {', '.join(PARTS)}.", [], nargs="+", metavar="PART"
    ),
    Option(
        "--precision",
        float | None,
        "Stop when the consistency is known to this many points, either way.",
    ),
    Option("--fail_under", float | None, "Answer 1 if --metric is below this share in any mode."),
    Option("--metric", str, f"What is held to it: {', '.join(METRICS)}.", "consistency"),
    examples=(
        "teka audit digits --data digits --html digits.html",
        "teka audit runs/mnist --data mnist --data-dir data --mode circular --mode zero --max-shift 4",
        "teka audit google/vit-base-patch16-224 --data pictures --images 200 --mode crop --json vit.json",
        "teka audit model.onnx --data pictures --budget 600 --resume runs/audit",
        "teka audit digits --data digits --find-worst 0.2",
        "teka audit digits --data digits --change turn flip rotation scale brightness --html digits.html",
        "teka audit model.py:make --data images.npz --fail-under 0.95 --metric worst_shift_accuracy",
    ),
)
def audit(options: Namespace, command: str) -> int:
    """Move test images and see what a model makes of it.

    Accuracy and consistency with intervals, the layer that breaks first, and what could mislead. The answer is 1 where
    --fail-under is not reached, 2 for bad input, or where a mode that it asks for could not be measured.
    """
    check_name("metric", options.metric, METRICS)
    if options.fail_under is not None and not 0 <= options.fail_under <= 1:
        raise wrong_value("fail_under", options.fail_under, "a share from 0 to 1")
    for part in options.skip:
        check_name("skip", part, PARTS)
    settings = make_settings(options, tuple(part for part in PARTS if part not in options.skip))
    settings = dataclasses.replace(
        settings, precision=options.precision, changes=tuple(options.changes)
    )
    if options.find_worst is not None:
        unused = [name for name in NOT_SEARCHED if getattr(options, name, None) not in (None, [])]
        if unused or len(settings.modes) > 1:
            given = ", ".join(unused) or "several modes"
            expected = f"None with {given}: it looks for one shift of one mode, and makes no report"
            raise wrong_value("find_worst", options.find_worst, expected)
    state = check_files(options)
    case = read_case(read_model(options.model, options), options, settings)
    print(one_line(case.description, LONGEST_TEXT))
    if options.find_worst is not None:
        for caveat in case.known["caveats"]:
            print(textwrap.fill(f"{caveat.name}: {caveat.message}", WIDTH))
        print(textwrap.fill(worst_shift(case, options.find_worst).words, WIDTH))
        return 0
    report = audit_case(case, command, state, debug=options.debug)
    write_results([report], report.to_dict(), options, audit_text([report]))
    passed = options.fail_under is None or passes(report, options.metric, options.fail_under)
    return 0 if passed else NOT_PASSED


def worst_shift(case: AuditCase, share: float) -> WorstShift:
    """The shift of lowest accuracy in the first mode, asking for a share of what all shifts take."""
    settings, sizes = case.settings, (case.images.shape[2], case.images.shape[3])
    if case.labels is None:
        raise wrong_value(
            "find_worst", share, "None without labels, which say whether a classifier is right"
        )
    with evaluating(module_of(case.function)), progress_bar() as show:
        return find_worst_shift(
            case.function,
            case.images,
            case.labels,
            settings.shifts_for(sizes),
            settings.movement(settings.modes[0], sizes),
            share=share,
            confidence=settings.confidence,
            seed=settings.seed,
            batch_size=settings.batch_size,
            device=settings.device,
            progress=lambda done, total, left: show(
                "worst shift", done, total, f"{left:.0f} s left"
            ),
        )


def passes(report: AuditReport, metric: str, least: float) -> bool:
    """Return True if a share of `METRICS` is reached in every mode of a valid report; print the decision."""
    if missing := [f"{one.part} ({one.message})" for one in report.failures if one.decides]:
        raise ValueError(
            f"--fail-under needs every mode and check, but these failed: {', '.join(missing)}"
        )
    if report.invalid:
        print(f"not passed: the results are invalid ({', '.join(report.invalid)})")
        return False
    value = report.number(metric)
    verdict = "passed" if value >= least else "not passed"
    print(f"{verdict}: {metric} is {100 * value:.2f} %, and {100 * least:.2f} % is asked for")
    return value >= least


def make_settings(options: Namespace, parts: tuple[str, ...]) -> AuditSettings:
    """The settings that `OPTIONS` ask for, with the parts to do."""
    # A procedure of the literature brings its own movement, of images of the model's size.
    usual = (
        "circular"
        if options.modes or options.preset
        else usual_mode(options.data, options.data_dir)[0]
    )
    return AuditSettings(
        shifts=shift_set(options.shifts, options.max_shift, options.step),
        modes=tuple(options.modes or (usual,)),
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
    most = MOST_STEPS if name != "square" else (math.isqrt(MOST_SHIFTS) - 1) // 2
    if max_shift / step > most + 0.5:
        if step == 1:
            raise wrong_value("max_shift", max_shift, f"at most {most} for --shifts {name}")
        least = f"at least {significant(max_shift / most)}: --shifts {name} takes at most {most} steps up to --max-shift"
        raise wrong_value("step", step, least)
    count = round(max_shift / step)
    if abs(count * step - max_shift) > 1e-9:
        raise wrong_value("max_shift", max_shift, f"a multiple of the step, {step}, of at least 0")
    steps = square_shifts(count) if name == "square" else axis_shifts(count)
    if name in ("dy", "dx"):
        other = 1 if name == "dy" else 0
        steps = tuple(one for one in steps if one[other] == 0)
    # Whole numbers of pixels are whole numbers.
    places = {at: round(at * step, 9) for at in range(-count, count + 1)}
    places |= {at: int(place) for at, place in places.items() if place == int(place)}
    return tuple(tuple(places[at] for at in one) for one in steps)


def check_files(options: Namespace) -> Path | None:
    """Check that results can be written, before anything is measured; folders are made, and that of the state given."""
    given = {name: getattr(options, name, None) for name in RESULTS}
    paths = {argument: Path(path) for argument, path in given.items() if path is not None}
    for argument, path in paths.items():
        if path.is_file() or not path.exists():  # not beside a device or a pipe
            make_directory(argument, path.parent)
        check_output_file(argument, path)
    written: dict[Path, str] = {}
    models = getattr(options, "models", None) or [getattr(options, "model", None)]
    inputs = [text for text in (*models, getattr(options, "data", None)) if text is not None]
    # A model's file may be followed by the name of a function.
    files = [
        file
        for text in inputs
        for file in (Path(text), Path(text.rpartition(":")[0]))
        if file.is_file()
    ]
    for argument, path in paths.items():
        if path.is_file() and any(path.samefile(file) for file in files):
            raise wrong_value(
                argument, given[argument], "another file than that of a model or the data"
            )
        if (other := written.setdefault(resolve_path(argument, path), argument)) != argument:
            raise wrong_value(argument, given[argument], f"another file than that of --{other}")
    if options.html is not None:
        require("jinja2", "reports need", "teka[report]")
    return None if options.resume is None else make_directory("resume", options.resume)


def write_results(
    reports: Sequence[AuditReport],
    content: Mapping[str, object],
    options: Namespace,
    text: str,
    pairs: Sequence[Pair] = (),
) -> None:
    """Write the files that were asked for, print text and tracebacks; what fails costs only itself."""
    writers: dict[str, Callable[[Path], object]] = {
        "html": lambda path: write_page(reports, path, pairs),
        "json": lambda path: write_json(path, content),
        "markdown": lambda path: write_bytes(path, summary_markdown(reports, pairs).encode()),
        "badge": lambda path: write_bytes(path, badge_svg(reports[0]).encode()),
    }

    def write(writer: Callable[[Path], object], path: Path) -> None:
        writer(path)
        print(f"written: {printable(path)}")

    with (
        contextlib.ExitStack() as results
    ):  # calls each of these, the last one first, whatever the others raise
        results.callback(print, text)
        for name, writer in writers.items():
            if (path := getattr(options, name, None)) is not None:
                results.callback(write, writer, Path(path))
        for failure in (
            failure for report in reports for failure in report.failures if options.debug
        ):
            results.callback(
                sys.stderr.write, f"{failure.part}:\n{failure.traceback or failure.message}\n"
            )


def read_model(model: str, options: Namespace) -> Subject:
    """Load a model by `OPTIONS`. From here on --budget limits each call of the model's code."""
    observe_calls(report_calls(options.budget))
    reading = Reading(
        options.input_size,
        options.weights,
        options.num_classes,
        None if options.mean is None else tuple(options.mean),
        None if options.std is None else tuple(options.std),
        options.bgr,
        options.device,
        options.data_dir,
        options.trust,
        options.output_name,
    )
    return load(model, reading, loaders=OWN_LOADERS)


def read_case(
    subject: Subject,
    options: Namespace,
    settings: AuditSettings,
    read: Callable[..., AuditImages] = load_images,
    held_out: bool | None = None,
) -> AuditCase:
    """A model with its images, by `OPTIONS`."""
    case = make_case(
        subject,
        options.data,
        settings,
        data_dir=options.data_dir,
        image_size=options.image_size,
        num_images=options.images or None,
        placed_size=options.placed_size,
        shift="before" if options.shift_before_resize else "after",
        labelled=not options.ignore_labels,
        held_out=held_out,
        read=read,
    )
    if options.modes or options.preset:
        return case
    mode, reason = usual_mode(options.data, options.data_dir)
    words = f"{mode}, the default, because {reason}"
    known = {**case.known, "data_facts": {**case.known["data_facts"], "mode": words}}
    return dataclasses.replace(case, known=known, description=f"{case.description}; mode {words}")


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
                **case.known,
                checkpoint=state,
                progress=lambda part, done, total, left: show(
                    f"{name}, {part}", done, total, f"{left:.0f} s left"
                ),
                command=command,
            )
    except ValueError:
        if debug:
            traceback.print_exc()
        raise
