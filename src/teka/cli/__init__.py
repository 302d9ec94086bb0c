"""The `teka` command."""

from teka.cli.main import main

__all__ = ["main"]
