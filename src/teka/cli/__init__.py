"""The command-line program `teka`."""

from teka.cli.app import make_app
from teka.cli.main import main

__all__ = ["main", "make_app"]
