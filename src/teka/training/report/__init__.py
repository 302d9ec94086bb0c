"""The report of trained models under shift."""
