"""A page from a template, with the style that all pages share, and what to install for it."""

import base64
from collections.abc import Mapping
from importlib import import_module
from importlib.resources import files


def require(package: str) -> None:
    """Check that a package of the `report` extra can be imported.

    Raises:
        ImportError: It cannot; the message names the extra that brings it.
    """
    try:
        import_module(package)
    except ImportError as error:
        raise ImportError(f"reports need {package}, which is not installed: pip install teka[report]") from error


def render_page(package: str, template: str, content: Mapping[str, object]) -> str:
    """One page that needs no other file and no network, from a template in a package and what it names.

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
    """The file of a picture as the address of an image within a page."""
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"
