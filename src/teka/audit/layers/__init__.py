"""Find the layer of a model that is to blame when its answer does not move with its input."""

from teka.audit.layers.blame_layers import blame_layers
from teka.audit.layers.layer_break import LayerBreak
from teka.audit.layers.layer_finding import LayerFinding
from teka.audit.layers.layer_findings import LayerFindings

__all__ = ["LayerBreak", "LayerFinding", "LayerFindings", "blame_layers"]
