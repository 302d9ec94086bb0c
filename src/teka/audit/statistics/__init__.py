"""From what a model answered to numbers with intervals."""
