"""The command line of the reproductions: python -m reproduction COMMAND [options].

The commands of `teka` work too. With them, `--model` takes the baselines of this package.
"""

import sys

from cyclopts import App

from teka.cli import main, make_app

REPRODUCTION_COMMANDS = {
    "study": ("reproduction.commands:study", "Train a grid of runs and compare them."),
    "reproduce": (
        "reproduction.commands:reproduce",
        "Reproduce Table 1 or Figure 1 of Horn et al. (2021).",
    ),
    "heads": (
        "reproduction.heads.commands:heads",
        "Draw where the heads of a self-attention network attend.",
    ),
    "sample-efficiency": (
        "reproduction.commands:sample_efficiency",
        "Train models on few images and compare them.",
    ),
    "cifar10": ("reproduction.cifar10:cifar10", "Train a shift-invariant model of CIFAR-10."),
    "all-shifts": (
        "reproduction.all_shifts:all_shifts",
        "Count the predictions that change at any circular shift.",
    ),
    "prune": ("reproduction.heads.commands:prune", "Remove degenerate heads and train on."),
}


def make_reproduction_app() -> App:
    """Return the parser with the commands of teka and of the reproductions."""
    app = make_app("python -m reproduction")
    for name, (path, summary) in REPRODUCTION_COMMANDS.items():
        app.command(path, name=name, help=summary)
    return app


def run(words: list[str]) -> int:
    """Run one command and return its exit code.

    Args:
        words: The command and its options.
    """
    return main(words, make_reproduction_app())


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
