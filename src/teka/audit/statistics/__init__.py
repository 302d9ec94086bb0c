"""Metrics of an audit with confidence intervals, computed from the outputs of a model.

docs/audit_statistics.md has the formulas and sources.
"""
