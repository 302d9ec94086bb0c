"""The linear backend: sums over keys of products of features."""
