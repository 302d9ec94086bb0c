"""The `teka` command."""

from teka.cli.app import COMMANDS, make_app
from teka.cli.main import main

__all__ = ["COMMANDS", "main", "make_app"]
