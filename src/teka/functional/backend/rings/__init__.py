"""The ring backend: sums over the cells at each Manhattan distance."""
