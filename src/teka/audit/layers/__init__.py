"""Find the layer of a model that is to blame when its answer does not move with its input."""
