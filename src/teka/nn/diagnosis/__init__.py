"""What a layer does to a given input, and what to change."""

from teka.nn.diagnosis.diagnose import diagnose
from teka.nn.diagnosis.diagnosis import Diagnosis

__all__ = ["Diagnosis", "diagnose"]
