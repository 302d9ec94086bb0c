"""Backends, which are different ways to compute the same attention."""
