"""Diagnostics of attention layers: what they cost, and how well they work on given inputs."""
