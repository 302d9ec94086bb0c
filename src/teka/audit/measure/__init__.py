"""Measurement of how a model's output changes when images are shifted, and of its noise."""
