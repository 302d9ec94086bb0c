"""Measurement of the outputs of a model for shifted images, and of their numerical noise."""
