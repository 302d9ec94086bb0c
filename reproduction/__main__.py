"""The command line of the reproductions: python -m reproduction COMMAND [options].

The commands of `teka` work too. With them, `--model` takes the baselines of this package.
"""

import sys

from teka.cli import COMMANDS, main

REPRODUCTION_COMMANDS = {
    "study": ("reproduction.commands:study", "train a grid of runs and compare them"),
    "reproduce": ("reproduction.commands:reproduce", "Table 1 and Figure 1 of Horn et al. (2021)"),
    "heads": (
        "reproduction.heads.commands:heads",
        "draw where heads of a self-attention network look",
    ),
    "prune": ("reproduction.heads.commands:prune", "remove degenerate heads and train on"),
}


def run(words: list[str]) -> int:
    """Run one command and return its exit code.

    Args:
        words: The command and its options.
    """
    program = (
        "python -m reproduction" if words[:1] and words[0] in REPRODUCTION_COMMANDS else "teka"
    )
    return main(words, COMMANDS | REPRODUCTION_COMMANDS, program)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
