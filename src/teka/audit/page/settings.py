"""What an audit was made with, as names and values to be read."""

import json
from collections.abc import Mapping

from teka.audit.report import AuditReport

LONGEST = 12
"""A list of more values is shortened: the JSON file of the report has all of it."""


def settings_groups(report: AuditReport) -> list[tuple[str, list[tuple[str, str]]]]:
    """Model, data, settings and provenance, each with its names and values; what is None or empty is left out.

    Args:
        report: The report.
    """
    groups = [
        ("Model", report.model),
        ("Data", report.data),
        ("Settings", report.settings),
        ("Made with", report.provenance),
    ]
    written = [(name, _pairs(content)) for name, content in groups]
    return [(name, pairs) for name, pairs in written if pairs]


def _pairs(content: Mapping[str, object]) -> list[tuple[str, str]]:
    return [(_name(name), _write(value)) for name, value in content.items() if value not in (None, "")]


def _name(name: str) -> str:
    words = name.replace("num_", "number_of_").replace("_", " ")
    return (words[:1].upper() + words[1:]).replace("ha256", "HA-256").replace("sHA", "SHA")


def _write(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return (f"{value:,}" if abs(value) >= 10_000 else str(value)).replace("-", "−")
    if isinstance(value, float):
        return f"{value:.6g}".replace("-", "−")
    if isinstance(value, list | tuple):
        if not value:
            return "none"
        if len(value) > LONGEST and all(isinstance(one, list | tuple) and len(one) == len(value[0]) for one in value):
            ends = (tuple(map(end, zip(*value, strict=True))) for end in (min, max))
            return f"{len(value):,}, from {' to '.join(f'({_write(one)})' for one in ends)}"
        words = [_write(one) if not isinstance(one, list | tuple) else f"({_write(one)})" for one in value[:LONGEST]]
        return ", ".join(words) + (f", … ({len(value):,} in all)" if len(value) > LONGEST else "")
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_write(inner)}" for name, inner in value.items()) or "none"
    return value if isinstance(value, str) else json.dumps(value, default=str)
