"""Audit of a model."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from teka.audit.caveats import Caveat, training_mode
from teka.audit.measure.outputs import check_labels
from teka.audit.model_call import Model, evaluation_mode, tensor_hash, weights_hash
from teka.audit.report import AuditReport, PackedResponses
from teka.audit.settings import AuditSettings, StepSet
from teka.audit.stages import AuditContext, Progress, run_detail_stages, run_main_stages
from teka.audit.verdict import verdict
from teka.checks import (
    check_callable,
    check_dense,
    check_instance,
    check_names,
    check_path,
    check_sequence,
    check_tensor,
    module_of,
    uncompiled,
)
from teka.errors import wrong_argument, wrong_value
from teka.provenance import provenance


def audit(
    model: Model,
    images: Tensor,
    labels: Tensor | None = None,
    settings: AuditSettings | None = None,
    *,
    shifts: StepSet | None = None,
    name: str | None = None,
    class_names: Sequence[str] | None = None,
    model_facts: dict[str, object] | None = None,
    data_facts: dict[str, object] | None = None,
    caveats: Sequence[Caveat] = (),
    checkpoint: str | Path | None = None,
    progress: Progress | None = None,
    on_result: Callable[[AuditReport], object] | None = None,
    command: str = "teka.audit.audit",
) -> AuditReport:
    """Measure how the outputs of a model change when its images are shifted.

    The report contains accuracy and consistency at each shift, the layers that break equivariance,
    and reasons why the results could be misleading. A module is measured in evaluation mode, and
    its mode is restored afterwards. If a stage fails, its error is recorded and the others still
    run.

    >>> import torch, teka
    >>> model = torch.nn.Sequential(
    ...     torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 4)
    ... )
    >>> settings = teka.audit.AuditSettings(shifts=[(0, 1), (1, 0)], parts=())
    >>> report = teka.audit.audit(model, torch.rand(20, 3, 8, 8), settings=settings)
    >>> report.number("consistency")
    1.0

    Args:
        model: Takes images (B, C, H, W) and returns an output that `measure_responses` describes:
            logits, probabilities, classes, features, maps or boxes, or an object with one of these
            in a field. In mode "canvas" it must take images of the size of the canvas, in mode
            "crop" of the size of the window. Layers are examined only in a `torch.nn.Module`.
        images: Images (N, C, H, W) in floating point, as the model takes them. If the mode fills
            with a background, use images before normalization, and put the normalization into the
            model.
        labels: Classes (N,) as integers from 0, or (N, K) of 0 and 1 for a multi-label classifier,
            or None.
        settings: Shifts, modes and everything else that is measured. By default `AuditSettings()`.
        shifts: Replaces the shifts of `settings`.
        name: Name of the model. By default the name of its class.
        class_names: Name of each class.
        model_facts: Other facts about the model for the report.
        data_facts: Other facts about the images for the report, such as the name of the data set.
        caveats: Caveats that the caller knows.
        checkpoint: Folder that keeps the state of interrupted measurements, or None. A measurement
            whose state is in it is resumed.
        progress: Called with the name of a stage, the finished entries, all entries and the seconds
            left.
        on_result: Called with the report of the main results, before the stages that explain them:
            layers, published protocols and numerical precision. From then on, a
            `KeyboardInterrupt` ends these stages, and the report of everything else is returned.
        command: Command that the report records.

    Raises:
        ValueError: Images or labels of a wrong shape or type, no images, or no mode that could be
            measured. The message is then that of the first mode.
    """
    check_callable("model", model)
    if settings is not None:
        check_instance("settings", settings, AuditSettings)
    settings = settings or AuditSettings()
    if shifts is not None:
        settings = dataclasses.replace(settings, shifts=shifts)
    _check_data(images, labels, class_names)
    for argument, value, kind in (
        ("name", name, str),
        ("command", command, str),
        ("model_facts", model_facts, dict),
        ("data_facts", data_facts, dict),
    ):
        if value is not None:
            check_instance(argument, value, kind)
    for caveat in check_sequence("caveats", caveats, "a list of caveats"):
        check_instance("caveats", caveat, Caveat)
    for argument, function in (("progress", progress), ("on_result", on_result)):
        if function is not None:
            check_callable(argument, function)
    if checkpoint is not None:
        checkpoint = check_path("checkpoint", checkpoint)
        if not checkpoint.is_dir():
            raise wrong_value("checkpoint", str(checkpoint), "a folder that exists")
    _check_layers(model, settings)
    context = AuditContext(
        model, images, labels, settings, progress, checkpoint, caveats=list(caveats)
    )
    module = module_of(model)
    if module is not None:
        context.caveats += training_mode(module)
    model_class = type(module or model).__name__
    facts = {
        "kind": model_class,
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

    def make_report() -> AuditReport:
        report = AuditReport(
            name=name or model_class,
            model=facts,
            data=data,
            settings=settings.to_dict(context.sizes),
            metrics=tuple(context.metrics),
            noise_floor=context.noise,
            layers=context.layers,
            protocols=tuple(context.protocols),
            caveats=tuple(dict.fromkeys(context.caveats)),
            failures=tuple(context.failures),
            examples=tuple(context.examples),
            verdict=(),
            provenance={**provenance(command), "seconds": round(context.deadline.seconds, 2)},
            responses=tuple(map(PackedResponses.pack, context.responses)),
        )
        return dataclasses.replace(report, verdict=verdict(report))

    with evaluation_mode(module):
        run_main_stages(context)
        if on_result is not None:
            on_result(make_report())
        run_detail_stages(context, is_interruptible=on_result is not None)
    return make_report()


def _check_layers(model: object, settings: AuditSettings) -> None:
    """Check that the requested layers exist, before anything is measured."""
    if settings.layers is None or "layers" not in settings.parts:
        return
    module = uncompiled(model)
    if not isinstance(module, torch.nn.Module):
        hint = f"The model is a {type(module).__name__} and not a module."
        raise wrong_value("layers", list(settings.layers), "None", hint)
    check_names("layers", settings.layers, [name for name, _ in module.named_modules() if name])


def _check_data(images: Tensor, labels: Tensor | None, class_names: Sequence[str] | None) -> None:
    check_dense("images", images)
    check_tensor("images", images, "images", "channels", "height", "width")
    if not images.isfinite().all():
        raise wrong_argument("images", "NaN or infinity", "finite values")
    if labels is not None:
        labels = check_labels(labels, len(images))
    if class_names is None:
        return
    num_classes = len(check_names("class_names", class_names))
    if labels is not None and labels.ndim == 1 and int(labels.max()) >= num_classes:
        expected = f"classes from 0 to {num_classes - 1}, as class_names has"
        raise wrong_value("labels", int(labels.max()), expected)
