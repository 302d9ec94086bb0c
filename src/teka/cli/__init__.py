"""The `teka` command."""

import importlib
import logging
import shlex
import sys
from collections.abc import Sequence

from teka import __version__
from teka.errors import unknown_name

COMMANDS = {
    "demo": "train three small models on digits, shift the images and compare",
    "download": "fetch published data sets and check them",
    "train": "train a model on a data set",
    "evaluate": "accuracy of a trained run on its test images",
    "shift": "accuracy of trained runs at every shift",
    "heads": "where the heads of a self-attention network look, in pictures",
    "prune": "remove a trained run's degenerate heads and train on",
    "export": "write a trained run's model as a model file",
    "predict": "what a trained model says of pictures",
    "audit": "what a model makes of images that move",
    "compare": "models over the same images, moved alike",
    "study": "train a grid of runs and compare them",
    "reproduce": "the table and the figure of Horn et al. (2021)",
    "bench": "time and memory of the layers on this machine",
}
FAILED = 1
USAGE_ERROR = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the `teka` command.

    Args:
        arguments: The command line after `teka`, the process's own by default.

    Returns:
        Exit code: 0; 1 when training diverged, ran out of memory or lost a process, a download failed, or an audit
        stayed below what it was held to; 130 when interrupted. Bad input exits with 2 and one line on standard error.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        print(_help())
        return 0
    if given[0] == "--version":
        print(f"teka {__version__}")
        return 0
    name = given[0]
    try:
        from teka.cli.parser import fail, with_underscores

        if name not in COMMANDS:
            fail("teka", unknown_name("command", name, COMMANDS))
        command = importlib.import_module(f"teka.cli.{name}")
    except ModuleNotFoundError as error:
        sys.stderr.write(f"teka: error: {error.name} is not installed; pip install 'teka[train,report]'\n")
        return USAGE_ERROR
    for part in ("pytorch", "fabric"):
        logging.getLogger(f"lightning.{part}").setLevel(logging.WARNING)
    try:
        options = command.make_parser().parse_args(with_underscores(given[1:]))
        command.main(options, shlex.join(["teka", *given]))
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        return INTERRUPTED
    except (FloatingPointError, ChildProcessError, MemoryError, ConnectionError) as error:
        sys.stderr.write(f"teka {name}: {error}\n")
        return FAILED
    except (ValueError, ImportError) as error:
        fail(f"teka {name}", error)
    return 0


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {purpose}" for name, purpose in COMMANDS.items()]
    return "\n".join(
        [
            "usage: teka COMMAND [options]",
            "",
            "Attention that depends on where things are relative to each other: models, training and measurement.",
            "",
            "commands:",
            *lines,
            "",
            "teka COMMAND --help shows the options of a command, with examples; teka --version the version.",
        ]
    )
