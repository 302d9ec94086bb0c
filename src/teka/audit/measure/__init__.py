"""From a model and images to what it answered at every shift, and how much of that is noise."""
