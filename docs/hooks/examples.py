"""Fences about the `>>>` examples of docstrings, which Markdown takes for quotations."""

import re

from griffe import Extension, Object

EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", flags=re.MULTILINE)


class FencedExamples(Extension):
    """Makes code of what follows a prompt, up to a blank line."""

    def on_object(self, *, obj: Object, **_: object) -> None:
        """Change the docstring of what was just read."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
