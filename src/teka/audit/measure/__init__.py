"""Measurement of how much a model's output changes by shifts of the images and by noise."""
