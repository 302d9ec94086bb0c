"""Tables, charts and HTML pages for reports."""
