"""The command line, as `python -m teka`."""

import sys

from teka.cli import main

sys.exit(main())
