"""Metrics of an audit with confidence intervals, computed from a model's outputs.

For the formulas and their sources, see docs/audit_statistics.md.
"""
