"""Measurements of the cost, accuracy, equivariance and problems of attention layers."""
