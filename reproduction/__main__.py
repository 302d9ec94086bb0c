"""Command-line program of the reproductions: python -m reproduction COMMAND [options].

All commands of `teka` are available too. Their option `--model` also accepts the models of
`reproduction.baselines`, such as `resnet18`.
"""

import sys

from cyclopts import App

from teka.cli import main, make_app

REPRODUCTION_COMMANDS = {
    "study": (
        "reproduction.study_commands:train_study",
        "Train the models described in a YAML file and compare them.",
    ),
    "reproduce": (
        "reproduction.study_commands:reproduce_paper",
        "Reproduce Table 1 or Figure 1 of Horn et al. (2021).",
    ),
    "heads": (
        "reproduction.heads.figures:plot_heads",
        "Plot which tokens the attention heads of a network attend to.",
    ),
    "sample-efficiency": (
        "reproduction.study_commands:compare_sample_efficiency",
        "Train models on increasing numbers of images and compare them.",
    ),
    "invariant": (
        "reproduction.invariant:train_invariant_classifier",
        "Train a shift-invariant classifier.",
    ),
    "long-inputs": (
        "reproduction.long_inputs:train_on_long_inputs",
        "Train a segmentation model on images with 65,536 tokens.",
    ),
    "all-shifts": (
        "reproduction.all_shifts:count_unchanged_images",
        "Count the test images whose prediction is the same at every circular shift.",
    ),
    "prune": (
        "reproduction.heads.prune:prune_run",
        "Remove degenerate attention heads from a network and fine-tune it.",
    ),
}


def make_reproduction_app() -> App:
    """Create the command-line app with the commands of teka and of the reproductions."""
    app = make_app("python -m reproduction")
    for name, (path, summary) in REPRODUCTION_COMMANDS.items():
        app.command(path, name=name, help=summary)
    return app


def run_command(arguments: list[str]) -> int:
    """Run one command and return its exit code.

    Args:
        arguments: Name of the command, followed by its command-line arguments.
    """
    return main(arguments, make_reproduction_app())


if __name__ == "__main__":
    sys.exit(run_command(sys.argv[1:]))
