"""Attention that depends only on relative positions: exact, in linear time, in any dimension."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from teka import audit, convert, data, functional, models, nn, prediction, testing, training
    from teka.grid import Grid, on
    from teka.nn.diagnostics.diagnose import diagnose
    from teka.nn.diagnostics.explain import explain

__version__ = "0.1.0"

__all__ = [
    "Grid",
    "__version__",
    "audit",
    "convert",
    "data",
    "diagnose",
    "explain",
    "functional",
    "models",
    "nn",
    "on",
    "prediction",
    "testing",
    "training",
]

# Modules of the names that are imported at their first use, so that `import teka` is fast.
_LAZY_MODULES = {
    "Grid": "teka.grid",
    "on": "teka.grid",
    "diagnose": "teka.nn.diagnostics.diagnose",
    "explain": "teka.nn.diagnostics.explain",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'teka' has no attribute {name!r}")
    if name in _LAZY_MODULES:
        value = getattr(import_module(_LAZY_MODULES[name]), name)
    else:
        value = import_module(f"teka.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
