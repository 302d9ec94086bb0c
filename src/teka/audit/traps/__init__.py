"""What could make an audit mislead, found without being asked for."""

from teka.audit.traps.batch_mates import batch_mates
from teka.audit.traps.collapse import chance, collapse
from teka.audit.traps.few_images import few_images
from teka.audit.traps.fill_value import fill_value
from teka.audit.traps.phases_unseen import phases_unseen
from teka.audit.traps.randomness import non_determinism, random_features
from teka.audit.traps.resized import resized
from teka.audit.traps.training_mode import training_mode
from teka.audit.traps.trap import SEVERITIES, Trap

__all__ = [
    "SEVERITIES",
    "Trap",
    "batch_mates",
    "chance",
    "collapse",
    "few_images",
    "fill_value",
    "non_determinism",
    "phases_unseen",
    "random_features",
    "resized",
    "training_mode",
]
