"""Any vision model by a name or a path, as a function of pictures that can be audited."""

from teka.audit.adapters.load import FORMS, Loader, load
from teka.audit.adapters.preprocessing import Preprocessing
from teka.audit.adapters.subject import Subject

__all__ = ["FORMS", "Loader", "Preprocessing", "Subject", "load"]
