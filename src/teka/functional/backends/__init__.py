"""Algorithms that compute attention, called backends. They differ in speed, not in the result.

The backend "dense" computes every pair of tokens, "linear" sums products of features, "rings" sums
keys at equal distance, "toeplitz" applies one matrix per axis, "fft" uses Fourier transforms, and
"windows" computes local windows.
"""
