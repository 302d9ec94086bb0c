"""What happens to a model's answers when its images move: the whole audit."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from teka.audit.caveats import SEVERITIES, Caveat, training_mode
from teka.audit.function import as_written, evaluating, module_of, tensor_hash, weights_hash
from teka.audit.layers.blame import LayerFindings
from teka.audit.measure.outputs import check_labels
from teka.audit.model_output import STILL
from teka.audit.movement import MODES
from teka.audit.page.changes import change_sentence
from teka.audit.parts import Progress, Work, do_parts, find_caveats
from teka.audit.report import AuditReport, PackedResponses
from teka.audit.settings import AuditSettings, StepSet
from teka.audit.statistics.estimate import Estimate
from teka.audit.statistics.metrics import Metrics
from teka.audit.statistics.phase import PhaseTable
from teka.checks import (
    check_callable,
    check_dense,
    check_instance,
    check_names,
    check_path,
    check_sequence,
    check_tensor,
)
from teka.errors import wrong_argument, wrong_type, wrong_value
from teka.provenance import provenance
from teka.reporting.formatting import write_share, write_size, write_step

PLACES = {
    "interior": "within the image",
    "edge": "at the image's edge",
    "aliasing": "between the cells of its grid",
}


def audit(
    model: Callable[[Tensor], object],
    images: Tensor,
    labels: Tensor | None = None,
    *,
    shifts: StepSet | None = None,
    modes: Sequence[str] | None = None,
    preset: str | None = None,
    seed: int | None = None,
    device: torch.device | str | None = None,
    budget_seconds: float | int | None = None,
    settings: AuditSettings | None = None,
    name: str | None = None,
    class_names: Sequence[str] | None = None,
    model_facts: Mapping[str, object] | None = None,
    data_facts: Mapping[str, object] | None = None,
    caveats: Sequence[Caveat] = (),
    checkpoint: str | Path | None = None,
    progress: Progress | None = None,
    command: str = "teka.audit.audit",
) -> AuditReport:
    """Move images and see what a model makes of it: accuracy and consistency, the layer to blame, and what misleads.

    A module is measured in evaluation mode, and set back afterwards. A part that fails is kept as a failure and does
    not stop the others. In mode `canvas` the model must take images of the canvas's size, in mode `crop` of the
    window's.

    Args:
        model: Images (B, C, H, W) to an output that `measure_responses` describes: logits, probabilities, classes,
            features or maps, or to what has one of these in a field. Layers are examined if it is a `torch.nn.Module`.
        images: Images (N, C, H, W), floating point, as the model takes them. Where the mode fills with a background,
            images before normalisation are better; put the normalisation into the model then.
        labels: Their classes (N,), integers from 0; for a multi-label classifier (N, K) of 0 and 1; or None.
        shifts: The set of shifts, ints along dx or (dy, dx); by default the square of ±8 pixels, less for small images.
        modes: Modes of the function `teka.audit.translate`, each measured for itself; by default "circular".
        preset: A procedure of the literature to add, a name of `teka.audit.procedures.PRESETS`.
        seed: Seed of the bootstrap and of the preset's draws; by default 0.
        device: Where images are taken; None leaves them.
        budget_seconds: Time for the whole audit; None for no limit.
        settings: What else to do; those of the six above that are not None take the place of its own.
        name: What to call the model; the name of its class by default.
        class_names: A name for each class.
        model_facts: What else to report of the model.
        data_facts: What else to report of the images, such as the name of the data set.
        caveats: What the caller knows that could mislead.
        checkpoint: A folder for the state of a measurement, which is resumed if there is one in it.
        progress: Called with the name of a part, the entries done, their total and the seconds left.
        command: The command to keep with the numbers.

    Raises:
        ValueError: Images or labels of a wrong shape or type, no images, or not a single mode that could be measured;
            the message is then that of the first.
    """
    given = {"shifts": shifts, "modes": modes, "preset": preset, "seed": seed, "device": device}
    given["budget_seconds"] = budget_seconds
    named: dict[str, Any] = {option: value for option, value in given.items() if value is not None}
    check_callable("model", model)
    if settings is not None:
        check_instance("settings", settings, AuditSettings)
    settings = dataclasses.replace(settings or AuditSettings(), **named)
    _check_data(images, labels, class_names)
    for argument, facts in (("model_facts", model_facts), ("data_facts", data_facts)):
        if facts is not None and not isinstance(facts, Mapping):
            raise wrong_type(argument, facts, "a dictionary")
    for argument, words in (("name", name), ("command", command)):
        if words is not None:
            check_instance(argument, words, str)
    for one in check_sequence("caveats", caveats, "a list of caveats"):
        check_instance("caveats", one, Caveat)
    if progress is not None:
        check_callable("progress", progress)
    if checkpoint is not None and not check_path("checkpoint", checkpoint).is_dir():
        raise wrong_value("checkpoint", str(checkpoint), "a folder that exists")
    _check_layers(model, settings)
    work = Work(
        model, images, labels, settings, progress, None if checkpoint is None else Path(checkpoint)
    )
    module = module_of(model)
    found = [*caveats, *(training_mode(module) if module is not None else ())]
    with evaluating(module):
        do_parts(work)
        found += find_caveats(work)
    results = work.results
    responses, metrics = zip(*results["mode"], strict=True)
    facts = {
        "kind": type(module or model).__name__,
        "parameters": None if module is None else sum(map(torch.numel, module.parameters())),
        "weights_sha256": weights_hash(model),
        **(model_facts or {}),
    }
    data = {
        "num_images": len(images),
        "image_shape": list(images.shape[1:]),
        "labelled": labels is not None,
        "class_names": None if class_names is None else list(class_names),
        "sha256": tensor_hash(images),
        **(data_facts or {}),
    }
    report = AuditReport(
        name or str(facts["kind"]),
        facts,
        data,
        settings.to_dict(work.sizes),
        metrics,
        dict(results["phases"]),
        work.first("noise"),
        tuple(results["derivative"]),
        {one.movement.mode: one for one in results["sensitivity"]},
        work.first("layers"),
        tuple(results["preset"]),
        tuple(found),
        tuple(work.failures),
        tuple(results["examples"]),
        (),
        {**provenance(command), "seconds": round(work.deadline.seconds, 2)},
        tuple(results["change"]),
        tuple(map(PackedResponses.pack, responses)),
    )
    return dataclasses.replace(report, verdict=verdict(report))


def _check_layers(model: object, settings: AuditSettings) -> None:
    """Check that the layers to look at exist, before anything is measured."""
    if settings.layers is None or "layers" not in settings.parts:
        return
    module = as_written(model)
    if not isinstance(module, torch.nn.Module):
        raise wrong_value(
            "layers",
            list(settings.layers),
            f"None; the model is a {type(module).__name__}, no module",
        )
    check_names("layers", settings.layers, [name for name, _ in module.named_modules() if name])


def _check_data(images: Tensor, labels: Tensor | None, class_names: Sequence[str] | None) -> None:
    check_dense("images", images)
    check_tensor("images", images, "images", "channels", "height", "width")
    if not images.isfinite().all():
        raise wrong_argument("images", "NaN or infinity", "finite values")
    if labels is not None:
        labels = check_labels(labels, len(images))
    if class_names is not None:
        class_names = check_names("class_names", class_names)
    if (
        labels is not None
        and labels.ndim == 1
        and class_names is not None
        and int(labels.max()) >= len(class_names)
    ):
        raise wrong_value(
            "labels",
            int(labels.max()),
            f"classes from 0 to {len(class_names) - 1}, as class_names has",
        )


def verdict(report: AuditReport) -> tuple[str, ...]:
    """Write what an audit found in sentences, the headline first. No sentence has numbers of an invalid report."""
    undecided = [one for one in report.metrics if _is_undecided(one, report)]
    if report.invalid:
        modes = [_of_mode(one, report) for one in undecided]
        return (
            f"{SEVERITIES['invalidates']}: {', '.join(report.invalid)}.",
            *modes,
            *_of_layers(report.layers),
        )
    sentences = [_headline(report, undecided), *(_of_mode(one, report) for one in report.metrics)]
    sentences += [
        *_of_phases(report.phases),
        *_of_layers(report.layers),
        *map(change_sentence, report.changes),
    ]
    for preset in report.presets:
        numbers = "; ".join(f"{name} {_share(number)}" for name, number in preset.numbers.items())
        sentences.append(f"By the procedure of {preset.name}: {numbers}.")
    return tuple(sentences)


def _of_layers(layers: LayerFindings | None) -> list[str]:
    if layers is None:
        return []
    sentences = []
    if layers.breaks:
        broken = [f"{one.name} {PLACES[kind]}" for kind, one in layers.breaks.items()]
        owners = " and ".join(
            name.rpartition(".")[0] or "the model itself" for name in layers.absolute_embeddings
        )
        added = f"; absolute positions are added in {owners}" if owners else ""
        sentences.append(f"First to break: {', '.join(broken)}{added}.")
    if layers.undecided:
        noise = max(one.noise for one in layers.undecided)
        sentences.append(
            f"Whether {layers.undecided[0].name} and what follows it break cannot be decided: two copies of the same "
            f"images differ by up to {write_size(noise)} there."
        )
    if not sentences:
        sentences.append(
            f"No layer breaks: every error is at most {write_size(layers.threshold)} of its output."
        )
    return sentences


def _share(estimate: Estimate) -> str:
    return f"{write_share(estimate.value)} % ({write_share(estimate.lower)} to {write_share(estimate.upper)} %)"


def _headline(report: AuditReport, undecided: Sequence[Metrics]) -> str:
    moved = [one for one in report.metrics if len(one.shifts) > 1]
    if not moved:
        return f"No image was moved{_why_not(report)}."
    if all(one.is_exact for one in moved if one not in undecided):
        if undecided:
            return f"{_where(undecided)}, {_undecided_words(report)}."
        return f"{_where(moved)}, moving the image changes nothing but rounding."
    overlaps = [one for one in moved if "overlap" in one.numbers]
    if overlaps:
        worst = min(overlaps, key=lambda one: one.numbers["overlap"].value)
        share = write_share(worst.numbers["overlap"].value)
        return f"{_where([worst])}, what the model finds overlaps by {share} % with what it found, moved along."
    flips, errors = (
        [one for one in moved if kind in one.numbers] for kind in ("flip_rate", "maximum_error")
    )
    worst = max(flips, key=lambda one: one.numbers["flip_rate"].value, default=None)
    if worst is not None and (rate := worst.numbers["flip_rate"].value) > 0:
        return f"{_where([worst])}, moving the image changes the answer in {write_share(rate)} % of the cases."
    worst = max(errors, key=lambda one: one.numbers["maximum_error"].value, default=None)
    # An output that is 0 has no size to compare with.
    by = (
        ""
        if worst is None
        else f" by up to {write_size(worst.numbers['maximum_error'].value)} of its size"
    )
    where = _where(moved if worst is None else [worst])
    return f"{where}, moving the image changes the output{by}{', and never the answer' if flips else ''}."


def _where(moved: Sequence[Metrics]) -> str:
    """How the image was moved, to begin a sentence."""
    words = dict.fromkeys(MODES[one.movement.mode].spoken for one in moved)
    return next(iter(words)).capitalize() if len(words) == 1 else f"In each of {len(moved)} modes"


def _is_undecided(metrics: Metrics, report: AuditReport) -> bool:
    noise = report.noise_floor
    return len(metrics.shifts) > 1 and noise is not None and metrics.is_within_noise(noise.repeat)


def _undecided_words(report: AuditReport) -> str:
    assert report.noise_floor is not None
    repeat = write_size(report.noise_floor.repeat)
    return (
        "whether moving the image changes the output cannot be decided: two calls on the same images differ by "
        f"{repeat} of their size"
    )


def _why_not(report: AuditReport) -> str:
    return ": time was up before" if report.settings.get("budget_seconds") else ""


def _of_mode(metrics: Metrics, report: AuditReport) -> str:
    numbers = metrics.numbers
    where = f"Moved in mode {metrics.movement.mode} ({len(metrics.shifts)} shifts, {metrics.num_images} images)"
    if len(metrics.shifts) < 2:
        return f"In mode {metrics.movement.mode} no image was moved{_why_not(report)}."
    if _is_undecided(metrics, report):
        return f"{where}, {_undecided_words(report)}."
    if metrics.is_exact:
        error = numbers["maximum_error"].value
        kind = "does not change" if metrics.output in STILL else "moves along exactly"
        right = (
            f"; {_share(numbers['accuracy'])} of the images are answered correctly"
            if "accuracy" in numbers
            else ""
        )
        return f"{where}, the output {kind}: relative error at most {write_size(error)}, which is rounding{right}."
    if "flip_rate" not in numbers:
        if "overlap" in numbers:
            lowest = f"{write_share(numbers['minimum_overlap'].value)} % at the worst shift"
            return f"{where}, the mean IoU with what moves along is {_share(numbers['overlap'])}, {lowest}."
        by = (
            f" by {write_size(numbers['maximum_error'].value)} of its size"
            if "maximum_error" in numbers
            else ""
        )
        found = (
            f" {_share(numbers['retrieval'])} are nearest to themselves unshifted."
            if "retrieval" in numbers
            else ""
        )
        return f"{where}, the output changes{by} at the worst shift.{found}"
    answer = f"{where}, the answer changes in {_share(numbers['flip_rate'])} of the cases"
    if "minimum_accuracy" not in numbers:
        return f"{answer}."
    curve = metrics.curves["accuracy"]
    worst = metrics.shifts[curve.values.index(min(curve.values))]
    return (
        f"{answer}: {_share(numbers['accuracy'])} of the images are answered correctly unshifted, "
        f"{write_share(numbers['minimum_accuracy'].value)} % at the worst shift, (dy, dx) = {_shift(worst)}, and "
        f"{_share(numbers['worst_shift_accuracy'])} at every shift."
    )


def _shift(shift: Sequence[int | float]) -> str:
    return f"({', '.join(map(write_step, shift))})"


def _of_phases(phases: Mapping[str, PhaseTable]) -> list[str]:
    sentences = []
    for mode, table in phases.items():
        kept = dict(zip(table.phases, table.values.get("agreement", ()), strict=False))
        on = kept.pop((0,) * len(table.stride), None)
        if on is None or not kept:
            continue
        worst = min(kept, key=lambda phase: kept[phase].value)
        # Intervals that overlap leave open whether the phase matters.
        if kept[worst].upper < on.lower:
            stride = " × ".join(map(str, table.stride))
            sentences.append(
                f"In mode {mode} the answer stays in {_share(on)} of the cases at shifts by multiples of {stride} "
                f"pixels, and in {_share(kept[worst])} at those {_shift(worst)} beyond them: the model's grid shows."
            )
    return sentences
