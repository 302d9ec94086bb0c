"""The commands of `python -m reproduction`."""

from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from reproduction.approximation import approximate as measure_errors
from reproduction.approximation.approximate import Approximation
from reproduction.approximation.report import write_approximation
from reproduction.baselines import SelfAttentionNetwork
from reproduction.baselines.degenerate_heads import heads_table
from reproduction.bench import bench as measure_layers
from reproduction.bench.bench import BENCH_FILE, LENGTHS, PLOT_FILE
from reproduction.bench.layers import layer_names
from reproduction.bench.report import bench_table
from reproduction.heads.measure import attention_maps, middle_query
from reproduction.heads.page import head_finding, write_heads
from reproduction.heads.prune import prune as prune_run
from reproduction.heads.record import BEFORE_PRUNING_FILE, HEADS_FILE, load_head_record
from reproduction.horn2021 import read_reproduction
from reproduction.horn2021 import reproduce as train_reproduction
from reproduction.horn2021.reproduction import SCALES, TARGETS, write_reproduction
from reproduction.study import Study, pack_study, read_study, run_study
from reproduction.study.cells import CELLS, list_cells
from reproduction.study.report.write import write_study
from reproduction.study.run_cell import repeat_cell
from reproduction.study.run_study import Progress
from reproduction.study.step_seconds import measure_step_seconds
from teka.audit.page.tables import Table, Written
from teka.cli.parser import Option, Show, command, fields_of, progress_bar
from teka.cli.runs import DATA_DIR, RUN
from teka.errors import wrong_value
from teka.files import make_directory
from teka.training import restore
from teka.training.checkpoint import CHECKPOINTS, LAST, load_weights

HEADS_FOLDER, HEADS_IMAGES = "heads", 100
QUERY_HELP = "The token whose attention maps are drawn, counted from 0 at the top left; the middle by default."
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


@command(
    Option("run", str, "Folder of a finished run with position (generalized_)quadratic."),
    Option("--out", str, "Folder to write, as a whole at the end.", required=True),
    fields_of(prune_run, skip=("trained", "out", "command", "progress_bar")),
    DATA_DIR,
    examples=(
        "teka prune runs/cifar10-generalized --out runs/cifar10-pruned",
        "teka prune runs/digits-generalized --condition-number 100 --epochs 5 --learning-rate 3e-4 "
        "--out runs/digits-pruned",
    ),
)
def prune(options: Namespace, command: str) -> None:
    """Remove the heads of a run of self_attention whose Gaussians have degenerated, and train on.

    What is written is the folder of a finished run, for teka evaluate, shift, export and prune.
    """
    fields = vars(options)
    trained = restore(fields.pop("run"), data_dir=fields.pop("data_dir"))
    pruning = prune_run(trained, **fields, command=command)
    print(heads_table(pruning.layers), end="\n\n")
    headings = ("", "parameters", "MFLOPs", "accuracy")
    sizes = {"before": pruning.before, "pruned": pruning.pruned, "trained on": pruning.tuned}
    rows = tuple(
        (
            name,
            f"{model.parameters:,}",
            f"{model.flops / 1e6:,.1f}",
            f"{100 * model.accuracy:.2f} %",
        )
        for name, model in sizes.items()
    )
    print(Table("", headings, rows).plain())
    low, high = (f"{100 * end:.2f} %" for end in pruning.evaluation.interval)
    print(
        f"{pruning.evaluation.test_images:,} test images; the last 95 % interval is {low} to {high}"
    )
    print(f"written: {fields['out']}")


@command(
    RUN,
    Option("--query", int, QUERY_HELP, nargs=2, metavar=("ROW", "COLUMN")),
    Option(
        "--out", str | None, f"Folder for the files, {HEADS_FOLDER}/ within the run's by default."
    ),
    DATA_DIR,
    examples=(
        "teka heads runs/digits-self_attention-0",
        "teka heads runs/cifar10 --query 3 12 --out pictures",
    ),
)
def heads(options: Namespace, command: str) -> None:
    """Draw where the heads of a finished run of model self_attention look.

    Centers and ellipses over training, attention maps of one token, and how near they come to a convolution's window.
    """
    trained = restore(options.run, data_dir=options.data_dir)
    model, run, result = trained.model, trained.run, trained.result
    if not isinstance(model, SelfAttentionNetwork):
        raise wrong_value(
            "run", options.run, f"a run of model 'self_attention'; its model is {run.model!r}"
        )
    record = load_head_record(trained.folder / HEADS_FILE)
    parent = trained.folder / BEFORE_PRUNING_FILE
    load_weights(
        model, trained.folder / CHECKPOINTS / LAST
    )  # the record's end is not its best epoch
    query = (
        middle_query(model.grid) if options.query is None else (options.query[0], options.query[1])
    )
    images = trained.dataset.test.images[:HEADS_IMAGES]
    words = [word.replace("_", " ") for word in (record.position, record.content) if word]
    settings = {
        "Command": command,
        "Trained by": result.get("command"),
        "Data": trained.dataset.name,
        "Network": f"{run.depth} blocks of dim {run.dim}, heads {run.heads}, {result.get('parameters')} parameters",
        "Training": f"{result.get('epochs')} epochs, {run.optimizer} at {run.learning_rate:g}, seed {run.seed}",
        "Hardware": result.get("hardware"),
        "Date": result.get("date"),
        "Versions": f"teka {result.get('teka')}, PyTorch {result.get('torch')}",
    }
    with progress_bar() as show:
        written = write_heads(
            record,
            attention_maps(model, images, query),
            trained.folder / HEADS_FOLDER if options.out is None else Path(options.out),
            query=query,
            num_images=len(images),
            name=f"{' and '.join(words)}, {trained.dataset.name}",
            settings=[(name, str(value)) for name, value in settings.items() if value],
            before=load_head_record(parent) if parent.is_file() else None,
            progress=lambda done, total: show("pictures", done, total, ""),
        )
    print(f"{written.terminal}\n\n{head_finding(record)}")
    print(f"written: {', '.join(map(str, written.files))}")
