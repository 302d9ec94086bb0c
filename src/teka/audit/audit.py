"""What happens to a model's answers when its images move: the whole audit."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from teka.audit.caveats import Caveat, training_mode
from teka.audit.function import evaluating, module_of, tensor_hash, weights_hash
from teka.audit.parts import Progress, Work, do_parts, find_caveats
from teka.audit.report import AuditReport, PackedResponses
from teka.audit.settings import AuditSettings, Steps
from teka.audit.verdict import verdict
from teka.errors import wrong_shape, wrong_value
from teka.provenance import provenance


def audit(
    model: Callable[[Tensor], object],
    images: Tensor,
    labels: Tensor | None = None,
    *,
    shifts: Sequence[Steps] | None = None,
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
        model: Images (B, C, H, W) to logits (B, K), features (B, …) or dense maps (B, C', H', W'), or to an object that
            has them as `.logits`. Layers are looked into if it is a `torch.nn.Module`.
        images: Images (N, C, H, W), floating point, as the model takes them. Where the mode fills with a background,
            images before normalisation are better; put the normalisation into the model then.
        labels: Their classes (N,), integers from 0, or None.
        shifts: The set of shifts, ints along dx or (dy, dx); by default the square of ±8 pixels, less for small images.
        modes: Modes of the function `teka.audit.translate`, each measured for itself; by default "circular".
        preset: A procedure of the literature to add, a name of `teka.audit.PRESETS`.
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
    settings = dataclasses.replace(settings or AuditSettings(), **named)
    _check_data(images, labels, class_names)
    folder = None if checkpoint is None else Path(checkpoint)
    work = Work(model, images, labels, settings, progress, folder)
    module = module_of(model)
    found = [*caveats, *(training_mode(module) if module is not None else ())]
    with evaluating(module):
        do_parts(work)
        found += find_caveats(work)
    results, noise, layers = work.results, work.first("noise"), work.first("layers")
    responses, metrics = zip(*results["mode"], strict=True)
    phases, presets = dict(results["phases"]), tuple(results["preset"])
    facts = {
        "kind": type(model).__name__,
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
    return AuditReport(
        name or str(facts["kind"]),
        facts,
        data,
        settings.to_dict(work.sizes),
        metrics,
        phases,
        noise,
        tuple(results["derivative"]),
        {one.movement.mode: one for one in results["sensitivity"]},
        layers,
        presets,
        tuple(found),
        tuple(work.failures),
        tuple(results["examples"]),
        verdict(metrics, layers, noise, phases, found, presets),
        {**provenance(command), "seconds": round(time.monotonic() - work.started, 2)},
        tuple(map(PackedResponses.pack, responses)),
    )


def _check_data(images: Tensor, labels: Tensor | None, class_names: Sequence[str] | None) -> None:
    if images.ndim != 4 or images.numel() == 0:
        raise wrong_shape("images", images.shape, "(images, channels, height, width), none of them 0")
    if not images.is_floating_point():
        raise wrong_value("images.dtype", images.dtype, "a floating point type")
    if not images.isfinite().all():
        raise wrong_value("images", "NaN or infinity", "finite values")
    if labels is not None and tuple(labels.shape) != (len(images),):
        raise wrong_shape("labels", labels.shape, f"({len(images)},), one label for each image")
    if labels is not None and class_names is not None and int(labels.max()) >= len(class_names):
        raise wrong_value("labels", int(labels.max()), f"classes from 0 to {len(class_names) - 1}, as class_names has")
