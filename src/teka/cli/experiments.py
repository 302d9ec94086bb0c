"""Commands of experiments: shift, demo, study, reproduce and bench."""

import textwrap
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from teka.audit.page.tables import Written
from teka.cli.parser import Option, Show, command, fields_of, progress_bar
from teka.cli.runs import DATA_DIR
from teka.errors import wrong_value
from teka.experiments.approximate import approximate as measure_errors
from teka.experiments.approximate.approximate import Approximation
from teka.experiments.approximate.report import write_approximation
from teka.experiments.bench import bench as measure_layers
from teka.experiments.bench.bench import BENCH_FILE, LENGTHS, PLOT_FILE
from teka.experiments.bench.layers import layer_names
from teka.experiments.bench.report import bench_table
from teka.experiments.reproduce import read_reproduction
from teka.experiments.reproduce import reproduce as train_reproduction
from teka.experiments.reproduce.reproduction import SCALES, TARGETS, write_reproduction
from teka.experiments.study import Study, pack_study, read_study, run_study
from teka.experiments.study.cells import CELLS, list_cells
from teka.experiments.study.report.write import write_study
from teka.experiments.study.run_cell import repeat_cell
from teka.experiments.study.run_study import Progress
from teka.experiments.study.step_seconds import measure_step_seconds
from teka.files import make_directory, resolve_path
from teka.training import Run, TrainedRun, restore, train
from teka.training.shift.measure import (
    ShiftSettings,
    check_same_data,
    make_examples,
    make_report,
    measure,
)
from teka.training.shift.page import write_report
from teka.training.shift.report import WIDTH, finding, plain_table
from teka.training.trained_run import model_name

# Edges meet, so that rolling an image is a symmetry of the exact models. No image is held out of so few.
BASE = Run.of(
    stem="convolution",
    periodic=True,
    dim=32,
    heads=2,
    depth=3,
    epochs=11,
    batch_size=32,
    validation_size=0,
)
DEMO_RUNS = (
    BASE.replace(position="absolute", backend="linear"),
    BASE.replace(position="rotary", backend="linear"),
    BASE.replace(position="rotary", kernel="softmax", backend="dense"),
    # A quarter of the tokens, from halvings that move with the image and from an ordinary stride.
    BASE.replace(position="rotary", backend="linear", depth=2, stem="polyphase", patch_size=2),
    BASE.replace(position="rotary", backend="linear", depth=2, stem="strided", patch_size=2),
)
LAYERS_HELP = f"The layers, all by default: {', '.join(layer_names())}; four_gemms is always timed."
ONLY_HELP = (
    "Train only the runs at these levels; 'seed' is a factor too. May be given several times."
)
# What every command that trains a grid of runs takes.
GRID_OPTIONS = (
    fields_of(run_study, skip=("study", "out", "only", "command", "progress")),
    Option("--only", str, ONLY_HELP, [], action="append", metavar="FACTOR=LEVEL,..."),
    Option("--summary", bool, "Train nothing, and write the tables and plots."),
    Option(
        "--pack",
        bool,
        "Then pack the cells' files into one, cells.jsonl.gz, which is read as well.",
    ),
)


@command(
    Option("runs", str, "Folders of finished runs on the same data.", nargs="+"),
    fields_of(ShiftSettings),
    DATA_DIR,
    Option("--out", str, "Folder for the report.", "runs/shift"),
    examples=(
        "teka shift runs/digits-absolute-squared_relu-0 runs/digits-rotation-squared_relu-0",
        "teka shift runs/mnist-* --max-shift 8 --selection figure1 --out runs/figure1",
        "teka shift runs/mnist-* --mode canvas --max-shift 6",
    ),
)
def shift(options: Namespace, command: str) -> None:
    """Compare trained runs on their test images, shifted along both axes."""
    settings = ShiftSettings(options.max_shift, options.mode, options.selection, options.batch_size)
    folders = [Path(run) for run in options.runs]
    if len({resolve_path("runs", folder) for folder in folders}) < len(folders):
        raise wrong_value("runs", options.runs, "each folder once")
    trained = [restore(folder, data_dir=options.data_dir) for folder in folders]
    _compare(trained, settings, make_directory("out", options.out), command)


def _compare(
    trained: Sequence[TrainedRun], settings: ShiftSettings, folder: Path, command: str
) -> None:
    check_same_data(trained)
    with progress_bar() as show:
        responses = [
            measure(
                run,
                settings,
                lambda done, total, stage=f"shift {run.name}": show(stage, done, total, ""),
            )
            for run in trained
        ]
    report = make_report(trained, responses, settings, command)
    written = write_report(report, make_examples(trained, responses, settings), folder)
    print(f"{plain_table(report)}\n\n{textwrap.fill(finding(report), WIDTH)}")
    print(f"written: {', '.join(map(str, written))}")


@command(
    Option("--out", str, "Folder for the runs and the report.", "runs/demo"),
    Option("--seeds", int, "Seeds; every model is trained with each.", [0], nargs="+"),
    Option("--epochs", int, "Passes over the training images.", BASE.epochs),
    examples=("teka demo", "teka demo --seeds 0 1 2 --out runs/demo-three-seeds"),
)
def demo(options: Namespace, command: str) -> None:
    """Train five small models on scikit-learn's digits, shift the test images and compare.

    They know absolute positions, the default's relative ones at linear cost, and these with softmax; two more have a
    quarter of the tokens, by polyphase halvings and by an ordinary stride. The same command resumes.
    """
    if not options.seeds or len(set(options.seeds)) < len(options.seeds):
        raise wrong_value("seeds", options.seeds, "one seed or more, each once")
    folder = make_directory("out", options.out)
    runs = [
        run.replace(seed=seed, epochs=options.epochs) for run in DEMO_RUNS for seed in options.seeds
    ]
    trained = []
    for number, run in enumerate(runs, start=1):
        name = model_name(run)
        print(f"[{number}/{len(runs)}] {name}, seed {run.seed}")
        place = folder / f"{name.replace(', ', '-')}-{run.seed}"
        train(run, place, resume=True, command=command)
        trained.append(restore(place))
    _compare(trained, ShiftSettings(max_shift=4, mode="lossless"), folder, command)


@command(
    Option("study", str, "YAML file of the study."),
    Option(
        "--out", str | None, "Folder of the results, beside the file and named after it by default."
    ),
    *GRID_OPTIONS,
    Option(
        "--repeat",
        str | None,
        "Train one finished cell again elsewhere and compare the numbers.",
        metavar="CELL",
    ),
    Option(
        "--step_seconds",
        bool,
        "Train nothing, and time a training step of every model in turn, to be compared.",
    ),
    examples=(
        "teka study studies/kernels.yaml --data-dir data --processes 2",
        'teka study studies/kernels.yaml --data-dir data --only data=digits --only "kernel=squared relu,softmax"',
        "teka study studies/kernels.yaml --summary --pack",
        "teka study studies/kernels.yaml --data-dir data --processes 2 --step-seconds",
        "teka study studies/kernels.yaml --data-dir data --repeat digits--squared-relu--rotation--seed-0",
    ),
)
def study(options: Namespace, command: str) -> None:
    """Train every cell of a study that has no result yet, then write tables and plots of all that have one.

    Killed at any moment, the same command resumes.
    """
    study = read_study(options.study)
    folder = Path(options.out) if options.out is not None else Path(options.study).with_suffix("")
    if options.repeat is not None:
        _repeat(study, folder, options.repeat, options.data_dir)
        return
    given = {"data_dir": options.data_dir, "processes": options.processes, "command": command}
    if options.step_seconds:
        if options.only:
            raise wrong_value(
                "only",
                options.only,
                "nothing with --step-seconds, which times every model of the study",
            )
        with progress_bar(lines=True) as show:
            print(f"written: {measure_step_seconds(study, folder, **given, progress=_steps(show))}")
        if not any(list_cells(folder / CELLS)):
            return
    elif not options.summary:
        only = parse_only(options.only)
        with progress_bar(lines=True) as show:
            run_study(
                study, folder, **given, parallel=options.parallel, only=only, progress=_steps(show)
            )
    written = write_study(folder, reference=study.reference, planned=len(study.places({})))
    _tell(written, pack_study(folder) if options.pack else ())


def _tell(written: Written, packed: Sequence[Path] = ()) -> None:
    print(f"{written.terminal}\nwritten: {', '.join(map(str, written.files))}")
    print(*(f"packed: {path}\n" for path in packed), sep="", end="")


def _steps(show: Show) -> Callable[[Progress], None]:
    """What a study calls with its progress."""
    return lambda step: show(
        step.stage, step.done, step.total, "" if step.cell is None else step.cell.name
    )


def _repeat(study: Study, folder: Path, cell: str, data_dir: str | None) -> None:
    stored, repeated = repeat_cell(study, folder, cell, data_dir=data_dir)
    for key, number in stored.items():
        print(f"{key:<22} {number!s:<22} again {repeated[key]}")
    if stored != repeated:
        reason = "other hardware, versions or threads may round otherwise"
        raise ValueError(f"{cell}: the numbers differ from those of the file; {reason}")
    print("the same numbers")


def parse_only(given: Sequence[str]) -> dict[str, list[str]]:
    """Levels by factor from "factor=level,level", which stood after --only."""
    only: dict[str, list[str]] = {}
    for entry in given:
        factor, equals, levels = entry.partition("=")
        if not (factor and equals and levels):
            raise wrong_value("only", entry, "FACTOR=LEVEL or FACTOR=LEVEL,LEVEL")
        only.setdefault(factor, []).extend(level.strip() for level in levels.split(","))
    return only


@command(
    Option("target", str, f"What to reproduce: {' or '.join(TARGETS)}."),
    Option(
        "--scale",
        str,
        "small, for a processor; full, the paper's size; full-cpu, our models at full resolution; or one-stem, the "
        "paper's positions behind their stem.",
        SCALES[0],
    ),
    Option("--out", str | None, "Folder of the results, runs/reproduce-SCALE by default."),
    *GRID_OPTIONS,
    Option("--list", bool, "Train nothing, and list the data sets, models and seeds."),
    examples=(
        "teka reproduce table1 --data-dir data --processes 2",
        "teka reproduce figure1 --data-dir data --only seed=0",
        'teka reproduce table1 --scale full --data-dir data --only "model=Performer (absolute)" --only data=mnist',
        "teka reproduce table1 --scale full-cpu --data-dir data --processes 2",
        "teka reproduce table1 --summary",
    ),
)
def reproduce(options: Namespace, command: str) -> None:
    """Train what a table or figure of Horn et al. (2021) still lacks, and write both from all that is there.

    Killed at any moment, the same command resumes.
    """
    study = read_reproduction(options.scale)
    if options.list:
        for factor, levels in {**study.factors, "seed": list(map(str, study.seeds))}.items():
            print(f"{factor}: {'; '.join(levels)}")
        return
    folder = Path(f"runs/reproduce-{options.scale}" if options.out is None else options.out)
    if not options.summary:
        with progress_bar(lines=True) as show:
            fields = {
                name: getattr(options, name)
                for name in ("scale", "data_dir", "processes", "parallel")
            }
            only = parse_only(options.only)
            train_reproduction(
                options.target, folder, **fields, only=only, command=command, progress=_steps(show)
            )
    written = write_reproduction(
        folder, description=study.description, planned=len(study.places({}))
    )
    _tell(written, pack_study(folder) if options.pack else ())


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
    _tell(write_approximation(result, folder))


@command(
    # Written out here, so that they take words after one another and not a list in brackets.
    Option(
        "--lengths",
        int,
        "Numbers of tokens, cells of a square grid each.",
        list(LENGTHS),
        nargs="+",
        metavar="L",
    ),
    Option("--layers", str, LAYERS_HELP, nargs="+", metavar="NAME"),
    fields_of(measure_layers, skip=("lengths", "layers", "command", "progress")),
    examples=(
        "teka bench",
        "teka bench --lengths 256 1024 4096 --threads 1 --out runs/bench",
        "teka bench --direction forward --layers squared_relu scaled_dot_product_attention",
    ),
)
def bench(options: Namespace, command: str) -> None:
    """Time layers in one process, from 64 to 262,144 tokens.

    They are held against their own four matrix products, scaled_dot_product_attention, MultiheadAttention and
    performer-pytorch; on a GPU also against flash-linear-attention and flash-bidirectional-linear-attention, where
    these are installed.
    """
    with progress_bar() as show:
        result = measure_layers(
            **vars(options), command=command, progress=lambda line: show(line, 0, None, "")
        )
    print(bench_table(result))
    print(f"written: {Path(options.out) / BENCH_FILE}, {Path(options.out) / PLOT_FILE}")
