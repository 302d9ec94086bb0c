"""Say what to install when a package of the `report` extra is missing."""

from importlib import import_module


def require(package: str) -> None:
    """Check that a package of the `report` extra can be imported.

    Raises:
        ImportError: It cannot; the message names the extra that brings it.
    """
    try:
        import_module(package)
    except ImportError as error:
        raise ImportError(f"reports need {package}, which is not installed: pip install teka[report]") from error
