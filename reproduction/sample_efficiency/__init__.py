"""Accuracy of models with few training images."""
