"""The commands `shift` and `demo`, which test trained models on shifted images."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from teka import training
from teka.audit import AuditSettings, axis_shifts
from teka.audit.adapters.inputs import AuditInputs
from teka.audit.adapters.loaded_model import LoadedModel
from teka.audit.movement import TRANSLATION_MODES
from teka.audit.page.text import format_caveats, results_text
from teka.checks import check_image_size
from teka.cli.app import CommandLine
from teka.cli.audit import audit_and_compare_models, print_and_write_results
from teka.cli.audit_options import MODE_HELP, ResultOptions
from teka.errors import wrong_value
from teka.files import check_folder_is_writable, make_directory, resolve_path
from teka.models import Performer
from teka.reporting.formatting import format_count
from teka.training import Run

if TYPE_CHECKING:
    from teka.training import TrainedRun

# The edges of images meet, so that the exact models are equivariant to rolls. The data set is too
# small to hold out images for validation.
BASE = Run.from_fields(
    stem="convolution",
    backend="linear",
    periodic=True,
    dim=32,
    heads=2,
    depth=3,
    epochs=11,
    batch_size=32,
    validation_size=0,
)
DEMO_RUNS = (
    BASE.replace(position="absolute"),
    BASE.replace(position="rotary"),
    # A quarter of the tokens, sampled in a shift-equivariant way and with an ordinary stride.
    BASE.replace(position="rotary", depth=2, stem="polyphase", patch_size=2),
    BASE.replace(position="rotary", depth=2, stem="strided", patch_size=2),
)


def shift(
    runs: list[str],
    /,
    *,
    max_shift: int = 4,
    mode: Annotated[
        str, Parameter(choices=TRANSLATION_MODES, show_choices=False, help=MODE_HELP)
    ] = "zero",
    batch_size: int = 256,
    data_dir: str | None = None,
    out: str = "runs/shift",
    command: CommandLine,
) -> None:
    """Measure the accuracy of trained runs at every shift of their test images.

    For each run, the command prints three percentages with 95 % intervals: the accuracy on
    unshifted images, the share of images that are classified correctly at every shift, and the
    share of predictions that a shift does not change. It also writes a page with figures,
    `report.html`, and all numbers, `report.json`.

    For example:

        teka shift runs/digits-absolute-squared_relu-0 runs/digits-rotary-squared_relu-0
        teka shift runs/mnist-* --mode canvas --max-shift 6

    Args:
        runs: Folders of finished runs on the same data.
        max_shift: Largest shift in pixels, along each axis in both directions.
        mode: How images are shifted.
        batch_size: Number of images per batch.
        data_dir: Folder with the files of the data set, if it has moved.
        out: Folder for the report.
    """
    if len({resolve_path("runs", run) for run in runs}) < len(runs):
        raise wrong_value("runs", runs, "different folders")
    settings = AuditSettings(
        shifts=axis_shifts(max_shift), modes=(mode,), parts=(), batch_size=batch_size
    )
    _audit_and_compare_runs(
        [training.restore(run, data_dir=data_dir) for run in runs], settings, out, command
    )


def _audit_and_compare_runs(
    runs: "Sequence[TrainedRun]", settings: AuditSettings, out: str, command: str
) -> None:
    """Audit trained runs on their test images, and write a comparison to the folder `out`."""
    datasets = sorted({(run.dataset.name, run.dataset.image_size) for run in runs})
    if len(datasets) > 1:
        raise wrong_value("runs", datasets, "runs with the same data set and image size")
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [f"{run.name}, seed {run.run.seed}" for run in runs]
    if len(set(names)) < len(names):
        names = [str(run.folder) for run in runs]
    audit_inputs = [
        _make_inputs_from_run(run, name, settings) for run, name in zip(runs, names, strict=True)
    ]
    check_folder_is_writable("out", out)
    results = ResultOptions(html=f"{out}/report.html", json=f"{out}/report.json")
    comparison = audit_and_compare_models(audit_inputs, command, results)
    reports = comparison.reports
    text = "\n".join([results_text(reports), *format_caveats(reports)])
    print_and_write_results(reports, comparison.to_dict(), results, text, comparison.pairs)


def _make_inputs_from_run(trained: "TrainedRun", name: str, settings: AuditSettings) -> AuditInputs:
    """Return the inputs of an audit that measures a trained run on its own test images.

    Args:
        trained: Finished run.
        name: Name of the model in the report.
        settings: Settings of the audit.
    """
    model = trained.model
    dataset = trained.dataset
    test = dataset.test.to_intensities()
    movement = settings.movement(settings.modes[0], dataset.image_size)
    seen_size = movement.canvas_size or movement.crop_size
    if seen_size is not None and isinstance(model, Performer):
        model.resize(check_image_size("the size of the shifted images", seen_size))
    facts = {
        "seed": trained.run.seed,
        "run": str(trained.folder),
        "epochs": trained.result["epochs"],
        "seconds": trained.result["seconds"],
    }
    num_shifts = len(settings.shifts_for(dataset.image_size))
    used = f"{format_count(len(test), 'test image')} of {dataset.name}"
    return AuditInputs(
        LoadedModel(name, "teka run", model, model),
        model,
        test.images,
        test.labels,
        settings,
        {"model_facts": facts, "data_facts": {"name": dataset.name, "used": used}},
        (f"{name}: {used} at {format_count(num_shifts, 'shift')}",),
    )


def demo(
    *,
    out: str = "runs/demo",
    seeds: tuple[int, ...] = (0,),
    epochs: int = BASE.epochs,
    command: CommandLine,
) -> None:
    """Train four small models on digits and compare them on shifted images.

    The first model has absolute positions, and the second has relative positions. The other two
    have relative positions and reduce the number of tokens to a quarter: one by polyphase sampling,
    one by an ordinary stride. If the command is interrupted, run it again to continue.

    For example:

        teka demo
        teka demo --seeds 0 1 2 --out runs/demo-three-seeds

    Args:
        out: Folder for the runs and the report.
        seeds: Random seeds. Each model is trained once with each seed.
        epochs: Number of passes over the training images.
    """
    if len(set(seeds)) < len(seeds):
        raise wrong_value("seeds", seeds, "different seeds")
    runs = [run.replace(seed=seed, epochs=epochs) for run in DEMO_RUNS for seed in seeds]
    folder = make_directory("out", out)
    print(f"training {len(runs)} models in {folder}")
    trained = []
    for number, run in enumerate(runs, start=1):
        name = run.model_name
        print(f"[{number}/{len(runs)}] {name}, seed {run.seed}", flush=True)
        run_folder = folder / f"{name.replace(', ', '-')}-{run.seed}"
        training.train(run, run_folder, resume=True, command=command)
        trained.append(training.restore(run_folder))
    _audit_and_compare_runs(
        trained, AuditSettings(axis_shifts(4), modes=("lossless",), parts=()), out, command
    )
