"""Attention that depends on where things are relative to each other, exactly, at linear cost, in any dimension."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from teka import audit, convert, functional, models, nn
    from teka.grid import Grid, on
    from teka.nn.diagnostics.diagnose import diagnose
    from teka.nn.diagnostics.explain import explain

__version__ = "0.1.0"

__all__ = [
    "Grid",
    "__version__",
    "audit",
    "convert",
    "diagnose",
    "explain",
    "functional",
    "models",
    "nn",
    "on",
]

# Where each name comes from; it is imported when it is first asked for, so that nobody waits for what they do not use.
_SOURCES = {
    "Grid": "teka.grid",
    "on": "teka.grid",
    "diagnose": "teka.nn.diagnostics.diagnose",
    "explain": "teka.nn.diagnostics.explain",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'teka' has no attribute {name!r}")
    source = _SOURCES.get(name)
    found = (
        import_module(f"teka.{name}") if source is None else getattr(import_module(source), name)
    )
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
