"""The command `approximate`."""

from argparse import Namespace
from typing import Any

from reproduction.approximation import approximate as measure_errors
from reproduction.approximation.approximate import Approximation
from reproduction.approximation.report import write_approximation
from teka.cli.parser import Option, command, fields_of, progress_bar
from teka.files import make_directory


@command(
    *(
        Option(
            f"--{name}", kind, what, list(getattr(Approximation, name)), nargs="+", metavar=metavar
        )
        for name, kind, metavar, what in (
            (
                "sizes",
                float,
                "SIZE",
                "Standard deviations of the entries of queries and keys, for the output's error.",
            ),
            (
                "radii",
                float,
                "RADIUS",
                "Radii of balls of scaled queries and keys, for the largest error of weights.",
            ),
            ("num_features", int, "M", "Lengths of the feature maps."),
            ("kernels", str, "NAME", f"Kernels: {', '.join(Approximation.kernels)}."),
            (
                "projections",
                str,
                "NAME",
                f"How features are drawn: {', '.join(Approximation.projections)}.",
            ),
        )
    ),
    fields_of(Approximation, skip=("sizes", "radii", "num_features", "kernels", "projections")),
    Option("--out", str, "Folder for the numbers, the picture and the page.", "runs/approximate"),
    examples=(
        "teka approximate",
        "teka approximate --dim 64 --tokens 1024 --sizes 1 --num-features 64 256 1024",
        "teka approximate --kernels positive --projections fixed_norm independent",
    ),
)
def approximate(options: Namespace, command: str) -> None:
    """Measure how near random features come to softmax attention, against their number and how they are drawn."""
    given: dict[str, Any] = {
        name: tuple(one) if isinstance(one, list) else one
        for name, one in vars(options).items()
        if name != "out"
    }
    settings, folder = Approximation(**given), make_directory("out", options.out)
    with progress_bar() as show:
        result = measure_errors(
            settings, command=command, progress=lambda done, total: show("errors", done, total, "")
        )
    written = write_approximation(result, folder)
    print(f"{written.terminal}\nwritten: {', '.join(map(str, written.files))}")
