"""Say what to install when a library that a model comes from is missing."""

from importlib import import_module
from types import ModuleType


def require(package: str, extra: str) -> ModuleType:
    """The package.

    Args:
        package: Its name.
        extra: What to install for it.

    Raises:
        ImportError: It cannot be imported; the message says what to install.
    """
    try:
        return import_module(package)
    except ImportError as error:
        raise ImportError(f"this model needs {package}, which cannot be imported: pip install {extra}") from error
