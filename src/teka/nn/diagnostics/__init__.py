"""Tools that measure the cost, accuracy and equivariance of attention layers, and find problems."""
