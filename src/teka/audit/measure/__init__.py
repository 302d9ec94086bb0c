"""Evaluation of a model on shifted images, and of the numerical noise of its outputs."""
