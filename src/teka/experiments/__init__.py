"""Grids of runs, the reproduction of the paper, and benchmarks: what is done with the library, apart from it."""
