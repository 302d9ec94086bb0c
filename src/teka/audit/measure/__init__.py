"""Measurement of a model's outputs for shifted images, and of their numerical noise."""
