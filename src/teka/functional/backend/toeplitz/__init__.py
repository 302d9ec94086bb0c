"""The Toeplitz backend: one small matrix an axis."""
