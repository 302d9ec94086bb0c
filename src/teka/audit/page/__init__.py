"""Tables, charts and the page of an audit."""
