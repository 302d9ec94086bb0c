"""Where heads look, over training."""
