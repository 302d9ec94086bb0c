"""Measure how any function of images, volumes or signals behaves when its input moves."""

from teka.audit.background import blank_margins
from teka.audit.diagnose import diagnose
from teka.audit.diagnosis import Diagnosis
from teka.audit.equivariance import EquivarianceError, assert_translation_equivariant, equivariance_error
from teka.audit.permutation import (
    PermutationError,
    assert_permutation_equivariant,
    assert_permutation_invariant,
    permutation_error,
)
from teka.audit.permutations import random_permutations
from teka.audit.shift_accuracy import ShiftAccuracy, accuracy_by_shift
from teka.audit.shifts import axis_shifts, square_shifts
from teka.audit.translate import TRANSLATION_MODES, paste_on_canvas, translate
from teka.audit.wilson import wilson_interval

__all__ = [
    "TRANSLATION_MODES",
    "Diagnosis",
    "EquivarianceError",
    "PermutationError",
    "ShiftAccuracy",
    "accuracy_by_shift",
    "assert_permutation_equivariant",
    "assert_permutation_invariant",
    "assert_translation_equivariant",
    "axis_shifts",
    "blank_margins",
    "diagnose",
    "equivariance_error",
    "paste_on_canvas",
    "permutation_error",
    "random_permutations",
    "square_shifts",
    "translate",
    "wilson_interval",
]
