"""Experiments with teka: reproductions of two papers, studies of attention kernels, and benchmarks.

This package is part of the repository but not of the installed library.
"""

from reproduction import baselines

__all__ = ["baselines"]
