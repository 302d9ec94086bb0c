"""The command `compare`: several models on the same shifted images."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from teka.audit.adapters.inputs import AuditInputs, is_trained_on, load_audit_images
from teka.audit.model_comparison import ModelComparison, check_comparable, compare_models
from teka.audit.page.text import audit_text, comparison_text
from teka.audit.report import AuditReport
from teka.audit.settings import PARTS
from teka.cli.app import CommandLine
from teka.cli.audit import audit_with_progress, write_results
from teka.cli.audit_options import AuditOptions, ResultOptions
from teka.errors import wrong_value


def compare(models: list[str], /, *, options: AuditOptions, command: CommandLine) -> None:
    """Audit models on the same shifted images and compare every two of them.

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
    settings = options.make_settings(PARTS if results.html is not None else ())
    results.check_files((*models, options.images.data))
    read_images = cache(load_audit_images)  # models with the same preprocessing share their images
    subjects = [options.load_model(model) for model in models]
    names = [subject.name for subject in subjects]
    for index, model in enumerate(models):
        if names.count(names[index]) > 1:
            subjects[index] = replace(subjects[index], name=model)
    # No model sees images that any of the models was trained on.
    held_out = any(is_trained_on(subject, options.images) for subject in subjects)
    cases = [
        options.make_audit_inputs(subject, settings, read_images, held_out) for subject in subjects
    ]
    write_comparison(audit_models(cases, command, results), results)


def audit_models(
    cases: Sequence[AuditInputs], command: str, results: ResultOptions
) -> ModelComparison:
    """Audit models on the same shifted images, and compare every two of them."""
    check_comparable(cases)
    print("\n".join(line for case in cases for line in case.description), flush=True)
    reports = [
        audit_every_mode(case, command, results, str(index)) for index, case in enumerate(cases)
    ]
    return compare_models(cases, reports)


def audit_every_mode(
    case: AuditInputs, command: str, results: ResultOptions, folder: str
) -> AuditReport:
    """Audit a model. Raise a ValueError if any mode was not measured."""
    report = audit_with_progress(case, command, results, folder)
    if len(report.metrics) < len(case.settings.modes):
        messages = "; ".join(failure.message for failure in report.failures)
        raise ValueError(f"{report.name}: {messages}")
    return report


def write_comparison(
    comparison: ModelComparison, results: ResultOptions, **content: object
) -> None:
    """Print a comparison and write the result files, with further content of the JSON file."""
    reports, pairs = comparison.reports, comparison.pairs
    text = f"{audit_text(reports)}\n\n{comparison_text(pairs, reports)}"
    write_results(reports, {**comparison.to_dict(), **content}, results, text, pairs)
