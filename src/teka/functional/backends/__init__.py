"""Algorithms that compute attention, called backends. They differ in speed, not in the result.

- "dense" computes the weight of every pair of tokens.
- "linear" sums products of key features and values once for all queries.
- "rings" first sums the keys at equal distance from a query.
- "toeplitz" multiplies by one matrix along each axis of a grid.
- "fft" computes convolutions by Fourier transforms.
- "windows" computes only the pairs within a local window.
"""
