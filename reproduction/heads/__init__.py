"""Analysis and pruning of attention heads, following Cordonnier et al. (2020)."""
