"""Extension that shows the `>>>` examples of docstrings as code instead of quotations."""

import re

from griffe import Extension, Object

EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", flags=re.MULTILINE)


class FencedExamples(Extension):
    """Wrap each example of a docstring, up to the next blank line, in a code fence."""

    def on_object(self, *, obj: Object, **_: object) -> None:
        """Edit the docstring of an object after griffe has read it."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
