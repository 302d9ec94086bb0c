"""Measure how any function of images, volumes or signals behaves when its input moves."""

from teka.audit.audit import audit
from teka.audit.caveats import Caveat
from teka.audit.equivariance import EquivarianceError, assert_translation_equivariant, equivariance_error
from teka.audit.example import Example
from teka.audit.function import ModelError
from teka.audit.images import blank_margins, paste_on_canvas
from teka.audit.layers import LayerFindings, blame_layers
from teka.audit.measure.lie_derivative import LieDerivative, lie_derivative
from teka.audit.measure.measure_responses import measure_responses, search_worst
from teka.audit.measure.noise_floor import NoiseFloor, noise_floor
from teka.audit.measure.responses import Responses
from teka.audit.measure.sensitivity_map import SensitivityMap, sensitivity_map
from teka.audit.movement import TRANSLATION_MODES, Movement, translate
from teka.audit.permutation import (
    PermutationError,
    assert_permutation_equivariant,
    assert_permutation_invariant,
    permutation_error,
    random_permutations,
)
from teka.audit.procedures import PRESETS, PresetResult
from teka.audit.report import AuditReport, Failure
from teka.audit.settings import PARTS, AuditSettings
from teka.audit.shift_accuracy import ShiftAccuracy, accuracy_by_shift
from teka.audit.shifts import axis_shifts, square_shifts
from teka.audit.statistics.comparison import Comparison, compare_responses
from teka.audit.statistics.estimate import Curve, Estimate
from teka.audit.statistics.intervals import wilson_interval
from teka.audit.statistics.metrics import Metrics
from teka.audit.statistics.phase import PhaseTable, StrideChoice, best_stride, error_by_phase
from teka.audit.statistics.summarize import summarize, summarize_seeds

__all__ = [
    "PARTS",
    "PRESETS",
    "TRANSLATION_MODES",
    "AuditReport",
    "AuditSettings",
    "Caveat",
    "Comparison",
    "Curve",
    "EquivarianceError",
    "Estimate",
    "Example",
    "Failure",
    "LayerFindings",
    "LieDerivative",
    "Metrics",
    "ModelError",
    "Movement",
    "NoiseFloor",
    "PermutationError",
    "PhaseTable",
    "PresetResult",
    "Responses",
    "SensitivityMap",
    "ShiftAccuracy",
    "StrideChoice",
    "accuracy_by_shift",
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
