"""Reproductions of two papers, studies of attention kernels, and benchmarks.

The installed library does not contain this package.
"""

from reproduction import baselines

__all__ = ["baselines"]
