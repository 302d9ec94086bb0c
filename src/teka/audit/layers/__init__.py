"""Localization of the layers that break the shift equivariance of a model."""
