"""Any vision model by a name or a path, as a function of pictures that can be audited."""

from teka.adapters.load import FORMS, load
from teka.adapters.preprocessing import Preprocessing
from teka.adapters.subject import Subject

__all__ = ["FORMS", "Preprocessing", "Subject", "load"]
