"""Attention backends, which are different algorithms for the same result."""
