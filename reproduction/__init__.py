"""Reproductions of the papers, kernel studies and benchmarks. Not part of the installed library."""

from reproduction import baselines

__all__ = ["baselines"]
