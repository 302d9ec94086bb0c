"""The command `audit`: how a model reacts to shifted images."""

import contextlib
import dataclasses
import sys
import textwrap
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import teka.audit
from teka.audit.adapters.inputs import AuditInputs
from teka.audit.changes import CHANGES
from teka.audit.measure.worst_shift import WorstShift, find_worst_shift
from teka.audit.model_call import evaluating, module_of
from teka.audit.page.pages import write_page
from teka.audit.page.summary import badge_svg, summary_markdown
from teka.audit.page.text import audit_text
from teka.audit.report import AuditReport
from teka.audit.settings import PARTS
from teka.audit.statistics.metrics import NUMBERS
from teka.audit.statistics.ranking import Pair
from teka.cli.app import CommandLine
from teka.cli.audit_options import AuditOptions, ResultOptions
from teka.cli.progress import show_progress
from teka.errors import one_line, printable, wrong_value
from teka.files import write_bytes, write_json
from teka.reporting.tables import LONGEST_TEXT, WIDTH

# Metrics that are shares, where higher is better.
METRICS = tuple(
    name for name, number in NUMBERS.items() if number.is_share and number.over != "rest"
)
NOT_PASSED = 1  # exit code


def audit(
    model: str,
    /,
    *,
    options: AuditOptions,
    change: Annotated[tuple[str, ...], Parameter(group="Measurement", choices=tuple(CHANGES))] = (),
    skip: Annotated[tuple[str, ...], Parameter(group="Measurement", choices=PARTS)] = (),
    precision: Annotated[float | None, Parameter(group="Measurement")] = None,
    find_worst: Annotated[float | None, Parameter(group="Measurement")] = None,
    badge: Annotated[str | None, Parameter(group="Results")] = None,
    fail_under: Annotated[float | None, Parameter(group="Results")] = None,
    metric: Annotated[str, Parameter(group="Results", choices=METRICS)] = "consistency",
    command: CommandLine,
) -> int:
    """Measure how the predictions of a model change when its input images are shifted.

    The report has the accuracy and the consistency with intervals, the layer that breaks
    equivariance first, and warnings about anything that could mislead. The exit code is 1 if
    `--fail-under` is not reached, and 2 for wrong input or if something it needs was not measured.

    For example:

        teka audit digits --data digits --html digits.html
        teka audit runs/mnist --data mnist --data-dir data --mode circular zero --max-shift 4
        teka audit google/vit-base-patch16-224 --data pictures --images 200 --json vit.json
        teka audit model.onnx --data pictures --budget 600 --resume runs/audit
        teka audit digits --data digits --find-worst 0.2
        teka audit model.py:make --data images.npz --fail-under 0.95

    Args:
        model: Folder of a run, a model file or the name of a packaged model of teka; timm:NAME or
            torchvision:NAME; name or folder of a transformers model; module.py:FUNCTION; or a file
            of ONNX, TorchScript or torch.export. module.py runs with all your rights. TorchScript
            and torch.export can run code too and need --trust. No other code runs, and no file is
            unpickled.
        change: Other image changes to measure too.
        skip: Stages to leave out.
        precision: Stop when the interval of the consistency is at most this many percentage points
            on either side.
        find_worst: Only search the worst shift, with this share of the calls that all shifts need.
        badge: Badge to write as SVG. It shows the lowest consistency of any mode.
        fail_under: Exit with code 1 if --metric is below this share in any mode.
        metric: Metric that --fail-under applies to.
    """
    if fail_under is not None and not 0 <= fail_under <= 1:
        raise wrong_value("fail_under", fail_under, "a share from 0 to 1")
    results = options.results
    settings = options.make_settings([part for part in PARTS if part not in skip])
    settings = dataclasses.replace(settings, precision=precision, changes=change)
    if find_worst is not None:
        unused = {
            **{name: getattr(results, name) for name in ("html", "json", "markdown")},
            "badge": badge,
            "fail_under": fail_under,
            "precision": precision,
            "protocol": settings.protocol,
            "budget": settings.budget_seconds,
            "resume": results.resume,
            "change": change,
        }
        names = ", ".join(name for name, value in unused.items() if value not in (None, ()))
        if names or len(settings.modes) > 1:
            reason = "it searches one shift in one mode and makes no report"
            expected = f"None with {names or 'several modes'}: {reason}"
            raise wrong_value("find_worst", find_worst, expected)
    state = results.check((model, options.images.data), badge=badge)
    case = options.make_inputs(options.load_model(model), settings)
    print(one_line(case.description, LONGEST_TEXT), flush=True)
    if find_worst is not None:
        for caveat in case.known["caveats"]:
            print(textwrap.fill(f"{caveat.name}: {caveat.message}", WIDTH))
        print(textwrap.fill(worst_shift(case, find_worst).words, WIDTH))
        return 0
    report = audit_case(case, command, state, debug=results.debug)
    write_results([report], report.to_dict(), results, audit_text([report]), badge=badge)
    return 0 if fail_under is None or passes(report, metric, fail_under) else NOT_PASSED


def worst_shift(case: AuditInputs, share: float) -> WorstShift:
    """Return the shift with the lowest accuracy in the first mode.

    Args:
        case: Model and images.
        share: Share of the model's calls that a measurement of all shifts would need.
    """
    settings = case.settings
    sizes = (case.images.shape[2], case.images.shape[3])
    if case.labels is None:
        expected = "None without labels, which say whether a classifier is right"
        raise wrong_value("find_worst", share, expected)
    with evaluating(module_of(case.function)), show_progress() as show:
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
            progress=lambda done, total, _: show("worst shift", done, total),
        )


def passes(report: AuditReport, metric: str, least: float) -> bool:
    """Return True if the report is valid and a metric is at least `least` in every mode."""
    failed = [f"{one.part} ({one.message})" for one in report.failures if one.decides]
    if failed:
        raise ValueError(
            f"--fail-under needs every mode and check, but these failed: {', '.join(failed)}"
        )
    if report.invalid:
        print(f"not passed: the results are invalid ({', '.join(report.invalid)})")
        return False
    value = report.number(metric)
    verdict = "passed" if value >= least else "not passed"
    print(f"{verdict}: {metric} is {100 * value:.2f} %, at least {100 * least:.2f} % is required")
    return value >= least


def audit_case(case: AuditInputs, command: str, state: Path | None, *, debug: bool) -> AuditReport:
    """Audit a model and show the progress.

    Args:
        case: Model and images.
        command: Command line to record.
        state: Folder from which the audit resumes, or None.
        debug: Print the traceback if the audit fails.
    """
    name = case.subject.name
    try:
        with show_progress() as show:
            return teka.audit.audit(
                case.function,
                case.images,
                case.labels,
                settings=case.settings,
                name=name,
                **case.known,
                checkpoint=state,
                progress=lambda part, done, total, _: show(f"{name}, {part}", done, total),
                command=command,
            )
    except ValueError:
        if debug:
            traceback.print_exc()
        raise


def write_results(
    reports: Sequence[AuditReport],
    content: Mapping[str, object],
    results: ResultOptions,
    text: str,
    pairs: Sequence[Pair] = (),
    badge: str | None = None,
) -> None:
    """Write the result files, then print the text. A file that fails does not stop the others."""

    def write_markdown(path: Path) -> None:
        write_bytes(path, summary_markdown(reports, pairs).encode())

    writers = [
        (results.html, lambda path: write_page(reports, path, pairs)),
        (results.json, lambda path: write_json(path, content)),
        (results.markdown, write_markdown),
        (badge, lambda path: write_bytes(path, badge_svg(reports[0]).encode())),
    ]

    def write(writer, file: str) -> None:
        writer(Path(file))
        print(f"written: {printable(file)}")

    with contextlib.ExitStack() as callbacks:  # runs all of them, the last one first
        for file, writer in writers:
            if file is not None:
                callbacks.callback(write, writer, file)
        callbacks.callback(print, text)
        for failure in [one for report in reports for one in report.failures if results.debug]:
            lines = f"{failure.part}:\n{failure.traceback or failure.message}\n"
            callbacks.callback(sys.stderr.write, lines)
