"""Pages of one HTML file that needs no other and no network: the page of an audit, and any from a template."""

import base64
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from teka.audit.page.layers import COLUMNS, blamed_layers, layer_sections
from teka.audit.page.modes import mode_sections
from teka.audit.page.notation import listed
from teka.audit.page.sections import (
    SEVERITY_NAMES,
    audit_columns,
    audit_rows,
    column_head,
    confidences,
    numerics_rows,
    preset_sections,
    settings_groups,
    sorted_caveats,
    write_examples,
)
from teka.audit.page.style import line_style
from teka.audit.page.svg import swatch
from teka.audit.report import AuditReport
from teka.audit.statistics.metrics import NUMBERS
from teka.errors import require, wrong_value
from teka.files import write_bytes


def write_audit_page(reports: Sequence[AuditReport], path: str | Path) -> Path:
    """Write the page of one or more audits, whole or not at all; several models are shown side by side."""
    write_bytes(Path(path), render_audit_page(reports).encode("utf-8"))
    return Path(path)


def render_audit_page(reports: Sequence[AuditReport]) -> str:
    """One page that needs no other file and no network: the verdict, the numbers, pictures of them, and settings."""
    if not reports:
        raise wrong_value("reports", list(reports), "one or more reports")
    folder = files("teka.audit.page")
    columns, styles = audit_columns(reports), [line_style(at) for at in range(len(reports))]
    data = dict.fromkeys(str(report.data.get("name", "images")) for report in reports)
    content = {
        "audit_style": (folder / "audit.css").read_text(encoding="utf-8"),
        "script": (folder / "audit.js").read_text(encoding="utf-8"),
        "title": f"{listed([report.name for report in reports])}: what happens when the input moves?",
        "data": listed(list(data)),
        "reports": reports,
        "swatches": [swatch(style) for style in styles],
        "colours": [style.colour for style in styles],
        "caveats": [(report.name, caveat) for report in reports for caveat in sorted_caveats(report.caveats)],
        "severities": SEVERITY_NAMES,
        "columns": [(column_head(name), NUMBERS[name].meaning) for name in columns],
        "rows": audit_rows(reports, columns),
        "confidences": " and ".join(confidences(reports)),
        "modes": mode_sections(reports),
        "examples": write_examples(reports) if any(report.examples for report in reports) else "",
        "has_labels": any(example.label is not None for report in reports for example in report.examples),
        "layers": layer_sections(reports),
        "layer_columns": COLUMNS,
        "blamed": [blamed_layers(report.layers) for report in reports],
        "presets": preset_sections(reports),
        "numerics": numerics_rows(reports),
        "settings": [settings_groups(report) for report in reports],
        "version": next((str(report.provenance["teka"]) for report in reports if "teka" in report.provenance), ""),
    }
    return render_page("teka.audit.page", "audit.html.j2", content)


def render_page(package: str, template: str, content: Mapping[str, object]) -> str:
    """One page that needs no other file and no network, from a template in a package and what it names."""
    require("jinja2", "reports need", "teka[report]")
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    shared = files("teka.audit.page")  # with the frame of every page
    loader = FunctionLoader(
        lambda name: ((files(package) if name == template else shared) / name).read_text(encoding="utf-8")
    )
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    style = Markup((shared / "style.css").read_text(encoding="utf-8"))
    return environment.get_template(template).render(style=style, **content)


def data_uri(png: bytes) -> str:
    """The file of a picture as the address of an image within a page."""
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"
