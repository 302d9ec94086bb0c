"""Positions that the heads of Cordonnier et al. (2020) attend to, and pruning of heads."""
