"""Tools that measure the cost, accuracy and shift equivariance of attention layers."""
