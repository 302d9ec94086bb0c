"""Attention heads of Cordonnier et al. (2020): where they attend, and their pruning."""
