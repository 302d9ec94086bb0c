"""Where the heads of the network of Cordonnier et al. 2020 attend, and how to prune them."""
