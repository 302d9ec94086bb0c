"""Algorithms for attention ("backends"), such as dense, linear and FFT, with equal results."""
