"""Trained runs on shifted images: measured at every shift, gathered over seeds, and shown on a page."""
