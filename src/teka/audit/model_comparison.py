"""Comparison of several audited models on the same images and shifts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from teka.audit.adapters.inputs import AuditInputs
from teka.audit.model_call import evaluation_mode
from teka.audit.report import AuditReport, create_examples
from teka.audit.statistics.comparison import ModelPair, compare_all_pairs, disagreement_mask
from teka.checks import find_owning_module
from teka.codec import encode
from teka.errors import wrong_argument
from teka.precision import rounding_error_bound


@dataclass(frozen=True)
class ModelComparison:
    """Audit reports of several models, and a comparison of each pair of models.

    Args:
        reports: Report of each model. All reports show the same example images.
        pairs: Comparison of each pair of models in each mode.
    """

    reports: list[AuditReport]
    pairs: list[ModelPair]

    def to_dict(self) -> dict[str, object]:
        """Return the reports and comparisons as JSON data."""
        comparisons = []
        for pair in self.pairs:
            both = (self.reports[pair.first], self.reports[pair.second])
            comparisons.append(
                {
                    "first": both[0].name,
                    "second": both[1].name,
                    "invalid": [report.name for report in both if report.invalid],
                    **encode(pair.comparison),
                }
            )
        return {
            "reports": [report.to_dict() for report in self.reports],
            "comparisons": comparisons,
        }


def compare_models(
    audit_inputs: Sequence[AuditInputs], reports: Sequence[AuditReport]
) -> ModelComparison:
    """Compare each pair of models, and replace the example images of the reports by common ones.

    The common examples are the images on which the models disagree at most shifts.

    Args:
        audit_inputs: The models and their images, which `check_comparable_models` accepted.
        reports: Audit report of each model. All audits used the same modes and shifts.
    """
    responses = [[packed.unpack() for packed in report.responses] for report in reports]
    settings = audit_inputs[0].settings
    noise = [_output_noise(report) for report in reports]
    pairs = []
    examples = [[] for _ in audit_inputs]
    for mode in zip(*responses, strict=True):
        pairs += compare_all_pairs(mode, noise=noise, **settings.interval_options)
        if any(response.predictions is None for response in mode):
            continue
        num_shifts = disagreement_mask(mode).sum(dim=0)
        order = num_shifts.argsort(descending=True, stable=True)
        indices = order[: settings.num_examples].tolist()
        for inputs, response, shown in zip(audit_inputs, mode, examples, strict=True):
            with evaluation_mode(find_owning_module(inputs.function)):
                shown += create_examples(
                    inputs.function, inputs.images, response, indices, inputs.settings
                )
    same_examples = [
        replace(report, examples=tuple(shown))
        for report, shown in zip(reports, examples, strict=True)
    ]
    return ModelComparison(same_examples, pairs)


def _output_noise(report: AuditReport) -> float:
    """Return the relative difference of outputs that rounding and randomness alone can cause."""
    levels = [rounding_error_bound(metrics.epsilon) for metrics in report.metrics]
    floor = report.noise_floor
    if floor is not None:
        levels += [floor.repeat, floor.precision or 0.0]
    return max(levels, default=0.0)


def check_comparable_models(audit_inputs: Sequence[AuditInputs]) -> None:
    """Check that models can be compared: they need the same image size and order of classes.

    Raises:
        ValueError: The image sizes or the orders of the classes differ.
    """
    if len({inputs.images.shape[2:] for inputs in audit_inputs}) > 1:
        value = ", ".join(
            f"{inputs.model.name}: {tuple(inputs.images.shape[2:])}" for inputs in audit_inputs
        )
        expected = "the same, because the effect of a shift by one pixel depends on it"
        hint = "Use --shift-before-resize or --input-size."
        raise wrong_argument("the size of the models' images", value, expected, hint)
    labelled = [
        (inputs.model.name, inputs.labels) for inputs in audit_inputs if inputs.labels is not None
    ]
    for name, labels in labelled:
        first, first_labels = labelled[0]
        if not torch.equal(labels, first_labels):
            expected = f"that of {first}, because predictions are compared by class index"
            raise wrong_argument(f"the order of the classes of {name}", "another", expected)
