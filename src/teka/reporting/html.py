"""HTML pages of one file that need no network."""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from teka.errors import printable_lines, require

if TYPE_CHECKING:
    from jinja2 import Template


def render_page(package: str, template: str, content: Mapping[str, object]) -> str:
    """Render a template as a page that needs no other file and no network.

    Args:
        package: Package that contains the template.
        template: File name of the template. It may extend `page.html.j2` of this package.
        content: Values that the template shows.
    """
    require("jinja2", "reports need", "teka[report]")
    from markupsafe import Markup

    return _compiled_template(package, template).render(
        style=Markup(_read_text("teka.reporting", "style.css")), **content
    )


def _read_text(package: str, name: str) -> str:
    return (files(package) / name).read_text(encoding="utf-8")


@cache
def _compiled_template(package: str, template: str) -> "Template":
    # Compiling takes most of the time of a page, and a process often writes many pages.
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    def read(name: str) -> str:
        return _read_text(package if name == template else "teka.reporting", name)

    environment = Environment(
        loader=FunctionLoader(read),
        autoescape=True,
        finalize=_visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["visible"] = _visible
    return environment.get_template(template)


def _visible(value: object) -> object:
    """Escape the control characters of plain text."""
    is_text = isinstance(value, str) and not hasattr(value, "__html__")
    return printable_lines(value) if is_text else value
