"""The commands `heads` and `prune`."""

from argparse import Namespace
from pathlib import Path

from reproduction.baselines import SelfAttentionNetwork
from reproduction.baselines.degenerate_heads import heads_table
from reproduction.heads.measure import attention_maps, middle_query
from reproduction.heads.page import head_finding, write_heads
from reproduction.heads.prune import prune as prune_run
from reproduction.heads.record import BEFORE_PRUNING_FILE, HEADS_FILE, load_head_record
from teka.cli.parser import DATA_DIR, RUN, Option, command, fields_of, progress_bar
from teka.errors import wrong_value
from teka.reporting.tables import Table
from teka.training import restore
from teka.training.checkpoint import CHECKPOINTS, LAST, load_weights

HEADS_FOLDER, HEADS_IMAGES = "heads", 100
QUERY_HELP = "The token whose attention maps are drawn, counted from 0 at the top left; the middle by default."


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
