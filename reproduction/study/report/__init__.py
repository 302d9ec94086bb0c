"""Tables and charts of a study."""
