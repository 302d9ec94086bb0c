"""Diagnostics of attention layers: cost, accuracy, equivariance and common problems."""
