"""The dense backend: every pair of tokens. It is the truth for the others."""
