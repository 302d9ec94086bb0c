"""From a model and images to what it answered at every shift."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from jaxtyping import Shaped
from torch import Tensor

from teka.audit.measure.checkpoint import Checkpoint, tensor_hash, weights_hash
from teka.audit.measure.measurement import Measurement
from teka.audit.measure.outputs import ModelError
from teka.audit.measure.pace import Pace
from teka.audit.measure.responses import Responses
from teka.audit.movement import Movement
from teka.errors import wrong_value

# Relative difference of answers up to which a model counts as the one of the checkpoint.
SAME_MODEL = 1e-3


def measure_responses(
    function: Callable[[Tensor], object],
    images: Shaped[Tensor, "images channels *sizes"],
    shifts: Iterable[int | float | Sequence[int | float]],
    movement: Movement,
    *,
    labels: Shaped[Tensor, " images"] | None = None,
    output: str = "auto",
    stride: int | Sequence[int] | None = None,
    batch_size: int = 256,
    device: torch.device | str | None = None,
    budget_seconds: float | int | None = None,
    progress: Callable[[int, int, float], None] | None = None,
    checkpoint: str | Path | None = None,
) -> Responses:
    """Ask a model for every image at every shift.

    Images and shifts are folded together into full batches, so that N images at S shifts take ⌈N S / batch_size⌉ calls.
    The images go to the device once and are moved there; the model runs in inference mode. The shifts go from coarse to
    fine (`shift_order`), so that a budget that ends leaves a coarse set of them.

    A dense output of stride r is compared with T_{s/r} f(x), which is exact only at whole cells: shifts by other than
    multiples of r are refused, but in mode `fourier`, where the map is moved by the same interpolation, and in mode
    `bilinear` at stride 1. In modes without circular edges only cells whose content came from inside are compared.

    Args:
        function: The model, images (B, C, *S) to logits (B, K), features (B, …) or dense maps (B, C', *S'), or to an
            object that has them as `.logits`.
        images: Images (N, C, *S).
        shifts: The set of shifts, with the zero shift. Repeats count once.
        movement: How the images are moved.
        labels: Their classes (N,), integers from 0 to K − 1, or None. Only logits are compared with them.
        output: "logits", "features", "dense", or "auto": (B, K) with K ≥ 2 are logits; maps whose sizes divide those of
            the images and are not all 1 are dense; all else is features.
        stride: Pixels for one cell of a dense output, one number or one for each axis; None divides the sizes. Only
            maps that do not cover the images, as of convolutions without padding, need it.
        batch_size: Images for one call.
        device: Where the images are moved and the model gets them; None leaves them where they are.
        budget_seconds: Time after which no further call begins; the first one is always made.
        progress: Called after each call with the entries done (images times shifts), their total and the seconds left.
        checkpoint: A file for the state, written now and then, at the end and when the measurement is stopped. If it is
            there, the measurement goes on from it, after one more call that holds that the model is the same.

    Returns:
        The responses, on the CPU; `evaluated` is False where time ran out.

    Raises:
        ModelError: The model raised, or gave NaN, infinity or what is no such output; a ValueError that has what was
            measured before as `.responses`.
        ValueError: A module in training mode; no images; labels of the wrong shape, type or range; shifts or a movement
            that do not fit; an output that is not what it was said to be; a batch size below 1; a budget that is not
            positive; a checkpoint of another model, other data or other settings.
        ImportError: A checkpoint, and safetensors is not installed.
    """
    if batch_size < 1:
        raise wrong_value("batch_size", batch_size, "at least 1")
    pace = Pace(budget_seconds, progress)
    measurement = Measurement(function, images, shifts, movement, labels, output, stride, device)
    keeper = None
    if checkpoint is not None:
        identity = {
            "weights": weights_hash(function),
            "images": tensor_hash(images),
            "labels": "none" if labels is None else tensor_hash(labels),
            "shifts": json.dumps(measurement.moved.given_shifts),
            "movement": json.dumps(movement.to_dict()),
            "output": json.dumps([output, stride]),
        }
        keeper = Checkpoint(checkpoint, identity)
    done = begun = 0 if keeper is None else _restore(measurement, keeper, batch_size)
    total = len(measurement.moved)
    try:
        while done < total and (done == begun or not pace.expired):
            stop = min(done + batch_size, total)
            measurement.answer(torch.arange(done, stop))
            done = stop
            pace.report(done - begun, done, total)
            if keeper is not None and keeper.due:
                _keep(measurement, keeper, pace)
        return measurement.responses(pace.seconds)
    except ModelError as error:
        error.responses = measurement.sound_responses(pace.seconds)
        raise
    finally:
        if keeper is not None and done > begun:
            _keep(measurement, keeper, pace)


def _keep(measurement: Measurement, keeper: Checkpoint, pace: Pace) -> None:
    responses = measurement.sound_responses(pace.seconds)
    if measurement.table is not None and responses is not None:
        numbers = {
            "calls": responses.calls,
            "seconds": responses.seconds,
            "forward_seconds": responses.forward_seconds,
        }
        keeper.write(measurement.table.tensors(), numbers)


def _restore(measurement: Measurement, keeper: Checkpoint, batch_size: int) -> int:
    stored = keeper.read()
    if stored is None:
        return 0
    tensors, numbers = stored
    table, difference = measurement.restore(tensors, batch_size)
    if not difference <= SAME_MODEL:
        expected = (
            f"the state of this model; its answers to the images unmoved differ by {difference:.2g} of their norm"
        )
        raise wrong_value("checkpoint", str(keeper.path), expected)
    measurement.calls += int(numbers["calls"])
    measurement.seconds_before = numbers["seconds"]
    measurement.forward_seconds += numbers["forward_seconds"]
    return table.noted
