"""Metrics of an audit with confidence intervals, and comparisons of models.

The formulas and their sources are in docs/audit_statistics.md.
"""
