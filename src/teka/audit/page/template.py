"""A page from a template, with the style that all pages share."""

import base64
from collections.abc import Mapping
from importlib.resources import files

from teka.audit.page.require import require


def render_page(package: str, template: str, content: Mapping[str, object]) -> str:
    """One page that needs no other file and no network.

    Args:
        package: Where the template lies.
        template: Its file name.
        content: What the template names.

    Raises:
        ImportError: jinja2 is not installed.
    """
    require("jinja2")
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    style = Markup((files("teka.audit.page") / "style.css").read_text(encoding="utf-8"))
    page = environment.from_string((files(package) / template).read_text(encoding="utf-8"))
    return page.render(style=style, **content)


def data_uri(png: bytes) -> str:
    """A picture as the address of an image within a page.

    Args:
        png: The picture's file.
    """
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"
