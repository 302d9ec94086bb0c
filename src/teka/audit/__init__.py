"""Measure how any function of images, volumes or signals behaves when its input moves."""

from teka.audit.audit import audit
from teka.audit.equivariance import EquivarianceError, assert_translation_equivariant, equivariance_error
from teka.audit.function import ModelError
from teka.audit.images import blank_margins, paste_on_canvas
from teka.audit.layers.blame import blame_layers
from teka.audit.layers.findings import LayerFindings
from teka.audit.measure.distances import noise_floor, sensitivity_map
from teka.audit.measure.lie_derivative import lie_derivative
from teka.audit.measure.measure_responses import measure_responses, search_worst
from teka.audit.measure.responses import Responses
from teka.audit.movement import Movement, translate
from teka.audit.permutation import (
    assert_permutation_equivariant,
    assert_permutation_invariant,
    permutation_error,
    random_permutations,
)
from teka.audit.report import AuditReport
from teka.audit.settings import AuditSettings
from teka.audit.shifts import axis_shifts, square_shifts
from teka.audit.statistics.comparison import Comparison, compare_responses
from teka.audit.statistics.estimate import Curve, Estimate
from teka.audit.statistics.intervals import wilson_interval
from teka.audit.statistics.metrics import Metrics
from teka.audit.statistics.phase import best_stride, error_by_phase
from teka.audit.statistics.summarize import summarize, summarize_seeds

__all__ = [
    "AuditReport",
    "AuditSettings",
    "Comparison",
    "Curve",
    "EquivarianceError",
    "Estimate",
    "LayerFindings",
    "Metrics",
    "ModelError",
    "Movement",
    "Responses",
    "assert_permutation_equivariant",
    "assert_permutation_invariant",
    "assert_translation_equivariant",
    "audit",
    "axis_shifts",
    "best_stride",
    "blame_layers",
    "blank_margins",
    "compare_responses",
    "equivariance_error",
    "error_by_phase",
    "lie_derivative",
    "measure_responses",
    "noise_floor",
    "paste_on_canvas",
    "permutation_error",
    "random_permutations",
    "search_worst",
    "sensitivity_map",
    "square_shifts",
    "summarize",
    "summarize_seeds",
    "translate",
    "wilson_interval",
]
