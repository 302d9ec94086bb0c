"""Find the layer of a model that is to blame when its answer does not move with its input."""

from teka.audit.layers.blame import blame_layers
from teka.audit.layers.findings import LayerBreak, LayerFinding, LayerFindings

__all__ = ["LayerBreak", "LayerFinding", "LayerFindings", "blame_layers"]
