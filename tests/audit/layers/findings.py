"""Helpers for reading the findings of a model's layers."""

from teka.audit.layers.localize import LayerFinding, LayerFindings


def find(layers: LayerFindings, name: str) -> LayerFinding:
    """Return the finding of a layer by its name."""
    return next(finding for finding in layers.findings if finding.name == name)


def exact_step(layers: LayerFindings, finding: LayerFinding) -> int | None:
    """Return the smallest step in pixels whose multiples all have errors below the threshold."""
    errors = {}
    for shift, error in zip(layers.shifts, finding.errors, strict=True):
        step = max(int(abs(step)) for step in shift)
        errors[step] = max(errors.get(step, 0.0), error or 0.0)
    for step in sorted(errors):
        if all(errors[other] <= layers.threshold for other in errors if other % step == 0):
            return step
    return None
