"""From a model and images to what it answered at every shift, and how much of that is noise."""

from teka.audit.measure.lie_derivative import LieDerivative, lie_derivative
from teka.audit.measure.measure_responses import measure_responses
from teka.audit.measure.noise_floor import NoiseFloor, noise_floor
from teka.audit.measure.outputs import ModelError
from teka.audit.measure.responses import Responses
from teka.audit.measure.search_worst import search_worst
from teka.audit.measure.sensitivity_map import SensitivityMap, sensitivity_map

__all__ = [
    "LieDerivative",
    "ModelError",
    "NoiseFloor",
    "Responses",
    "SensitivityMap",
    "lie_derivative",
    "measure_responses",
    "noise_floor",
    "search_worst",
    "sensitivity_map",
]
