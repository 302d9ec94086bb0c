"""Tables and charts for reports."""
