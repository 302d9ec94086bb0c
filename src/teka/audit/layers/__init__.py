"""Localization of the layers of a model that break shift equivariance."""
