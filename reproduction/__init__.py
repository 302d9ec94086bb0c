"""Reproductions of the papers, kernel studies and benchmarks. Not part of the installed library."""
