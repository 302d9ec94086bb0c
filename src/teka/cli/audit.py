"""The commands `audit` and `compare`, which measure how models react to shifted images."""

import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import teka.audit
from teka.audit.adapters.inputs import AuditInputs, is_trained_on, load_audit_images
from teka.audit.model_comparison import ModelComparison, check_comparable_models, compare_models
from teka.audit.page.badge import badge_svg
from teka.audit.page.pages import write_page
from teka.audit.page.text import (
    audit_text,
    comparison_text,
    format_summary_as_markdown,
    remaining_findings_text,
)
from teka.audit.report import AuditReport
from teka.audit.settings import PARTS
from teka.audit.statistics.comparison import ModelPair
from teka.audit.statistics.metrics import NUMBERS
from teka.cli.app import CommandLine
from teka.cli.audit_options import AuditOptions, ResultOptions
from teka.cli.progress import ProgressDisplay
from teka.errors import escape_unprintable, wrong_value
from teka.files import write_bytes, write_json

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
        model: One of the following: the folder of a teka run, the folder of a teka model file, the
            name of a packaged model, timm:NAME, torchvision:NAME, the name or folder of a
            transformers model, module.py:FUNCTION, or an ONNX, TorchScript or torch.export file.
            The code in module.py runs with all your rights. TorchScript and torch.export files can
            contain code too and need --trust. No other code runs, and no file is unpickled.
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
    settings = options.make_audit_settings([part for part in PARTS if part not in skip])
    results.check_output_files((model, options.images.data), badge=badge)
    inputs = options.prepare_audit_inputs(options.load_model(model), settings)
    print("\n".join(inputs.description), flush=True)
    main_results: list[AuditReport] = []

    def print_result(report: AuditReport) -> None:
        main_results.append(report)
        print(audit_text([report]), flush=True)
        if settings.parts or settings.protocol is not None:
            print("\nExplaining the result (Ctrl-C to stop) ...", flush=True)

    report = audit_with_progress(inputs, command, results, on_result=print_result)
    print_and_write_results(
        [report],
        report.to_dict(),
        results,
        remaining_findings_text(main_results[0], report),
        badge=badge,
    )
    return 0 if fail_under is None or print_pass_or_fail(report, metric, fail_under) else NOT_PASSED


def compare(models: list[str], /, *, options: AuditOptions, command: CommandLine) -> None:
    """Audit models on the same shifted images and compare each pair of models.

    The comparison says which model is best, or that no model is significantly better than the
    others. Differences between models have confidence intervals and p-values.

    For example:

        teka compare runs/absolute runs/rotary --data mnist --data-dir data --html compared.html
        teka compare digits vit-folder --data digits --images 0 --mode zero --max-shift 4
        teka compare a.onnx b.onnx --data pictures --shift-before-resize --resume runs/compare

    Args:
        models: Two or more models. See `teka audit --help` for the kinds of models.
    """
    if len(models) < 2 or len(set(models)) < len(models):
        raise wrong_value("models", models, "two or more different models")
    results = options.results
    # The stages besides the shifts are only shown on the page.
    settings = options.make_audit_settings(PARTS if results.html is not None else ())
    results.check_output_files((*models, options.images.data))
    read_images = cache(load_audit_images)  # models with the same preprocessing share their images
    subjects = [options.load_model(model) for model in models]
    names = [subject.name for subject in subjects]
    for index, model in enumerate(models):
        if names.count(names[index]) > 1:
            subjects[index] = replace(subjects[index], name=model)
    # No model sees images that any of the models was trained on.
    held_out = any(is_trained_on(subject, options.images) for subject in subjects)
    audit_inputs = [
        options.prepare_audit_inputs(subject, settings, read_images, held_out)
        for subject in subjects
    ]
    print_and_write_comparison(audit_and_compare_models(audit_inputs, command, results), results)


def print_pass_or_fail(report: AuditReport, metric: str, minimum: float) -> bool:
    """Print whether an audit passes the threshold of `--fail-under`, and return True if it does.

    An audit passes if its results are valid and the metric is at least `minimum` in every shift
    mode.
    """
    if report.invalid:
        print(f"not passed: the results are invalid ({', '.join(report.invalid)})")
        return False
    value = report.number(metric)
    verdict = "passed" if value >= minimum else "not passed"
    print(f"{verdict}: {metric} is {100 * value:.2f} %, at least {100 * minimum:.2f} % is required")
    return value >= minimum


def audit_with_progress(
    inputs: AuditInputs,
    command: str,
    result_options: ResultOptions,
    subfolder: str = "",
    on_result: Callable[[AuditReport], object] | None = None,
) -> AuditReport:
    """Audit a model while a progress display on standard error shows the current stage.

    Args:
        inputs: The model, its test images and the audit settings.
        command: Command line to record in the report.
        result_options: The options `--resume` and `--debug`.
        subfolder: Subfolder of the `--resume` folder for this audit.
        on_result: See `teka.audit.audit`. The progress display is hidden while this function runs.
    """
    name = inputs.model.name
    resume = result_options.resume
    with ProgressDisplay() as display:

        def handle_result(report: AuditReport) -> None:
            display.stop()
            if on_result is not None:
                on_result(report)

        try:
            return teka.audit.audit(
                inputs.function,
                inputs.images,
                inputs.labels,
                settings=inputs.settings,
                name=name,
                **inputs.audit_arguments,
                checkpoint=None if resume is None else Path(resume, subfolder),
                progress=lambda part, done, total, _: display.show(f"{name}, {part}", done, total),
                on_result=on_result and handle_result,
                command=command,
            )
        except ValueError:
            if result_options.debug:
                traceback.print_exc()
            raise


def audit_and_compare_models(
    audit_inputs: Sequence[AuditInputs], command: str, result_options: ResultOptions
) -> ModelComparison:
    """Audit several models on the same shifted images, and compare each pair of models.

    Args:
        audit_inputs: For each model, the model, its test images and the audit settings.
        command: Command line to record in the reports.
        result_options: The options `--resume` and `--debug`.
    """
    check_comparable_models(audit_inputs)
    print("\n".join(line for inputs in audit_inputs for line in inputs.description), flush=True)
    reports = [
        audit_all_modes(inputs, command, result_options, str(index))
        for index, inputs in enumerate(audit_inputs)
    ]
    return compare_models(audit_inputs, reports)


def audit_all_modes(
    inputs: AuditInputs, command: str, result_options: ResultOptions, subfolder: str
) -> AuditReport:
    """Audit a model in all selected shift modes, and raise an error if one of them fails.

    Raises:
        ValueError: A shift mode could not be measured. The message names the model.
    """
    try:
        report = audit_with_progress(inputs, command, result_options, subfolder)
    except ValueError as error:
        raise ValueError(f"{inputs.model.name}: {error}") from error
    if len(report.metrics) < len(inputs.settings.modes):
        messages = "; ".join(failure.message for failure in report.failures)
        raise ValueError(f"{report.name}: {messages}")
    return report


def print_and_write_results(
    reports: Sequence[AuditReport],
    json_content: Mapping[str, object],
    result_options: ResultOptions,
    terminal_text: str,
    pairs: Sequence[ModelPair] = (),
    badge: str | None = None,
) -> None:
    """Print the results of an audit, and write them to the files of --html, --json and so on.

    If one file cannot be written, the other files are still written before the error is raised.

    Args:
        reports: Report of each audited model.
        json_content: Content of the JSON file.
        result_options: Paths of the HTML, JSON and Markdown files.
        terminal_text: Text to print on the terminal.
        pairs: Pairwise comparisons of the models.
        badge: Path of an SVG badge with the result of the first report.
    """
    if result_options.debug:
        for report in reports:
            for failure in report.failures:
                print(f"{failure.part}:\n{failure.traceback or failure.message}", file=sys.stderr)
    if terminal_text:
        print(terminal_text)
    writers: list[tuple[str | None, Callable[[Path], object]]] = [
        (badge, lambda path: write_bytes(path, badge_svg(reports[0]).encode())),
        (
            result_options.markdown,
            lambda path: write_bytes(path, format_summary_as_markdown(reports, pairs).encode()),
        ),
        (result_options.json, lambda path: write_json(path, json_content)),
        (result_options.html, lambda path: write_page(reports, path, pairs)),
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
            print(f"written: {escape_unprintable(file)}")
    if errors:
        raise errors[0]


def print_and_write_comparison(
    comparison: ModelComparison, result_options: ResultOptions, **json_fields: object
) -> None:
    """Print a comparison of models, and write it to the files of --html, --json and --markdown.

    Args:
        comparison: Reports of the models and their pairwise comparisons.
        result_options: Paths of the files.
        json_fields: Additional fields of the JSON file.
    """
    reports, pairs = comparison.reports, comparison.pairs
    print_and_write_results(
        reports,
        {**comparison.to_dict(), **json_fields},
        result_options,
        f"{audit_text(reports)}\n\n{comparison_text(pairs, reports)}",
        pairs,
    )
