"""The command `audit`: how a model reacts to shifted images."""

import contextlib
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import teka.audit
from teka.audit.adapters.inputs import AuditInputs
from teka.audit.page.pages import write_page
from teka.audit.page.summary import badge_svg, summary_markdown
from teka.audit.page.text import audit_text, details_text
from teka.audit.report import AuditReport
from teka.audit.settings import PARTS
from teka.audit.statistics.comparison import Pair
from teka.audit.statistics.metrics import NUMBERS
from teka.cli.app import CommandLine
from teka.cli.audit_options import AuditOptions, ResultOptions
from teka.cli.progress import show_progress
from teka.errors import printable, wrong_value
from teka.files import make_directory, write_bytes, write_json

# Metrics that are shares, where higher is better.
METRICS = tuple(name for name, number in NUMBERS.items() if number.is_share)
NOT_PASSED = 1  # exit code


def audit(
    model: str,
    /,
    *,
    options: AuditOptions,
    skip: Annotated[tuple[str, ...], Parameter(group="Measurement", choices=PARTS)] = (),
    badge: Annotated[str | None, Parameter(group="Results")] = None,
    fail_under: Annotated[float | None, Parameter(group="Results")] = None,
    metric: Annotated[str, Parameter(group="Results", choices=METRICS)] = "consistency",
    command: CommandLine,
) -> int:
    """Measure how the predictions of a model change when its input images are shifted.

    The report contains the accuracy and the consistency (the share of unchanged predictions) with
    confidence intervals, the first layer that breaks equivariance, and warnings about anything that
    could mislead. The exit code is 1 if the metric is below `--fail-under`, and 2 if the input is
    wrong or a required measurement failed.

    For example:

        teka audit digits --data digits --html digits.html
        teka audit runs/mnist --data mnist --data-dir data --mode circular zero --max-shift 4
        teka audit google/vit-base-patch16-224 --data pictures --images 200 --json vit.json
        teka audit model.onnx --data pictures --budget 600 --resume runs/audit
        teka audit model.py:make --data images.npz --fail-under 0.95

    Args:
        model: One of the following: the folder of a run of teka, the folder of a model file of
            teka, the name of a packaged model of teka, timm:NAME, torchvision:NAME, the name or
            folder of a transformers model, module.py:FUNCTION, or a file of ONNX, TorchScript or
            torch.export. The code in module.py runs with all your rights. Files of TorchScript and
            torch.export can contain code too and need --trust. No other code runs, and no file is
            unpickled.
        skip: Stages to leave out: noise (the numerical error of the model) or layers (the search
            for the layers that break equivariance).
        badge: SVG file for a badge with the consistency, the lowest of all modes.
        fail_under: Exit with code 1 if the metric of --metric is below this share (0 to 1) in any
            mode.
        metric: Metric that --fail-under applies to.
    """
    if fail_under is not None and not 0 <= fail_under <= 1:
        raise wrong_value("fail_under", fail_under, "a share from 0 to 1")
    results = options.results
    settings = options.make_settings([part for part in PARTS if part not in skip])
    results.check_files((model, options.images.data), badge=badge)
    case = options.make_audit_inputs(options.load_model(model), settings)
    print("\n".join(case.description), flush=True)
    main_results: list[AuditReport] = []

    def print_result(report: AuditReport) -> None:
        main_results.append(report)
        print(f"{audit_text([report])}\n\nExplaining the result (Ctrl-C to stop) ...", flush=True)

    report = audit_with_progress(case, command, results, on_result=print_result)
    details = details_text(main_results[0], report)
    write_results([report], report.to_dict(), results, details, badge=badge)
    return 0 if fail_under is None or reaches_threshold(report, metric, fail_under) else NOT_PASSED


def reaches_threshold(report: AuditReport, metric: str, least: float) -> bool:
    """Return True if the report is valid and a metric is at least `least` in every mode."""
    if report.invalid:
        print(f"not passed: the results are invalid ({', '.join(report.invalid)})")
        return False
    value = report.number(metric)
    verdict = "passed" if value >= least else "not passed"
    print(f"{verdict}: {metric} is {100 * value:.2f} %, at least {100 * least:.2f} % is required")
    return value >= least


def audit_with_progress(
    case: AuditInputs,
    command: str,
    results: ResultOptions,
    folder: str = "",
    on_result: Callable[[AuditReport], object] | None = None,
) -> AuditReport:
    """Audit a model and show the progress.

    Args:
        case: Model and images.
        command: Command line to record.
        results: Options for resuming and for tracebacks.
        folder: Folder in that of `--resume` from which this audit resumes.
        on_result: See `teka.audit.audit`. The progress is hidden while it runs.
    """
    name = case.subject.name
    state = None
    if results.resume is not None:
        state = make_directory("resume", Path(results.resume, folder))
    with contextlib.ExitStack() as bar:
        show = bar.enter_context(show_progress())

        def handle_result(report: AuditReport) -> None:
            nonlocal show
            bar.close()
            if on_result is not None:
                on_result(report)
            show = bar.enter_context(show_progress())

        try:
            return teka.audit.audit(
                case.function,
                case.images,
                case.labels,
                settings=case.settings,
                name=name,
                **case.known,
                checkpoint=state,
                progress=lambda part, done, total, _: show(f"{name}, {part}", done, total),
                on_result=on_result and handle_result,
                command=command,
            )
        except ValueError:
            if results.debug:
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
    for failure in [failure for report in reports for failure in report.failures if results.debug]:
        print(f"{failure.part}:\n{failure.traceback or failure.message}", file=sys.stderr)
    print(text)
    markdown = summary_markdown(reports, pairs)
    writers: list[tuple[str | None, Callable[[Path], object]]] = [
        (badge, lambda path: write_bytes(path, badge_svg(reports[0]).encode())),
        (results.markdown, lambda path: write_bytes(path, markdown.encode())),
        (results.json, lambda path: write_json(path, content)),
        (results.html, lambda path: write_page(reports, path, pairs)),
    ]
    errors = []
    for file, write in writers:
        if file is None:
            continue
        try:
            write(Path(file))
        except (OSError, ValueError) as error:
            errors.append(error)
        else:
            print(f"written: {printable(file)}")
    if errors:
        raise errors[0]
