"""The function `measure_responses`, which evaluates a model on every image at every shift.

A measurement can have a time limit, and it can save checkpoints from which it resumes.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Shaped
from torch import Tensor

from teka.audit.measure import compare_outputs
from teka.audit.measure.responses import WITH_ZERO, Responses
from teka.audit.model_call import (
    Model,
    ModelError,
    call_model,
    output_difference,
    tensor_hash,
    weights_hash,
)
from teka.audit.model_output import OUTPUT_CHOICES, flatten_vectors, infer_kind
from teka.audit.movement import ImageSet, Movement, Size, check_images
from teka.audit.shifts import CheckedShifts, SubpixelShifts, shift_order, shifts_to_floats
from teka.checks import (
    check_callable,
    check_device,
    check_evaluation_mode,
    check_instance,
    check_name,
    check_number,
    check_sizes,
    check_stride,
)
from teka.codec import encode
from teka.errors import require, wrong_value
from teka.files import check_file_is_writable, write_bytes
from teka.memory import check_fits_in_memory

CHECKED_IMAGES = 256  # number of images whose shifts are checked at once
Device = torch.device | str | None
ENTRY_BYTES = 8 * 8  # upper bound of the memory for one image at one shift
Batch = tuple[tuple[int, ...], slice]  # indices of shifts, and images for each of the shifts
FORMAT = "4"
BUDGET = "a positive number of seconds, or None"
# Minimum seconds between two writes, and minimum multiple of the duration of the last write.
SECONDS_BETWEEN = 5.0
TIMES_BETWEEN = 20.0
# Largest relative difference of the outputs at which two models count as the same model.
SAME_MODEL = 1e-3
Progress = Callable[[int, int, float], None]


def split_batches(shifts: CheckedShifts, num_images: int, batch_size: int) -> list[Batch]:
    """Split all combinations of images and shifts into batches, in the order of `shift_order`.

    A batch contains all images at several shifts, or some of the images at one shift.
    """
    order = shift_order(shifts)
    num_shifts = max(1, batch_size // num_images)
    return [
        (order[first : first + num_shifts], slice(image, min(image + batch_size, num_images)))
        for first in range(0, len(order), num_shifts)
        for image in range(0, num_images, batch_size)
    ]


class BatchEvaluator:
    """Evaluator that calls a model on batches of shifted images, and collects the results.

    The constructor takes the arguments of `measure_responses` and checks them. The first call of
    the model determines the kind and the shape of the output.
    """

    def __init__(
        self,
        function: Model,
        images: ImageSet,
        shifts: SubpixelShifts,
        movement: Movement,
        labels: Shaped[Tensor, "images *labels"] | None,
        output: str,
        stride: Size | None,
        device: Device,
        batch_size: int,
    ) -> None:
        check_evaluation_mode("function", function)
        check_name("output", output, OUTPUT_CHOICES)
        check_instance("movement", movement, Movement)
        check_images(images, least=1)
        self._device = images.device if device is None else check_device(device)
        self._function = function
        self._images = images.detach()
        self._movement = movement
        steps = shifts_to_floats("shifts", shifts)
        # Check in chunks, because all padded images together may not fit into memory.
        for chunk in self._images.split(CHECKED_IMAGES):
            self.shifts = movement.parse_shifts(
                movement.prepare_images(chunk.to(self._device)), steps
            )
        if all(map(any, self.shifts)):
            raise wrong_value("shifts", self.shifts, WITH_ZERO)
        self.batches = split_batches(self.shifts, len(images), int(batch_size))
        self._zero = self.batches[0][0][0]
        entries = len(self.shifts) * len(images)
        self._seen_size = movement.seen_size(images.shape[2:])
        size = math.prod(self._seen_size) * images.shape[1]
        num_bytes = min(int(batch_size), entries) * size * images.element_size()
        check_fits_in_memory("batch_size", batch_size, num_bytes, "moved images")
        check_fits_in_memory("shifts", len(self.shifts), entries * ENTRY_BYTES, "responses")
        self._output = output
        self._stride = None if stride is None else check_stride(stride, images.ndim - 2)
        self._labels = None if labels is None else compare_outputs.parse_labels(labels, len(images))
        self._epsilon = torch.finfo(images.dtype).eps if images.is_floating_point() else 0.0
        self._references = torch.empty(0)
        self._tables = {"evaluated": torch.zeros(len(self.shifts), len(images), dtype=torch.bool)}

    @property
    def evaluated(self) -> Tensor:
        """Mask (S, N) of the shifts and images for which the model was already evaluated."""
        return self._tables["evaluated"]

    def evaluate_batch(self, batch: Batch) -> None:
        """Evaluate the model on a batch, and store its errors and predictions.

        Errors are differences from the outputs for the unshifted images. Therefore, the batches
        with the zero shift must be evaluated first.
        """
        shifts, images = batch
        output = self._call_on_shifted_images(batch)
        evaluated = self.evaluated
        for shift, part in zip(shifts, output.unflatten(0, (len(shifts), -1)), strict=True):
            is_finite = part.isfinite().reshape(len(part), -1).all(dim=1)
            if not is_finite.all():
                raise ModelError(
                    "the output of the model contains NaN or infinity at shift "
                    f"{self.shifts[shift]} for {int((~is_finite).sum())} of {len(part)} images"
                )
            if shift == self._zero:
                self._references[images] = part.cpu()
            for name, values in self._compare_with_unshifted(part, shift, images).items():
                if name not in self._tables:
                    empty = torch.full(evaluated.shape, -1)
                    if values.is_floating_point():
                        empty = torch.zeros(evaluated.shape, dtype=torch.float64)
                    self._tables[name] = empty
                table = self._tables[name]
                table[shift, images] = values.to(table)
            evaluated[shift, images] = True

    def saved_tensors(self) -> dict[str, Tensor]:
        """Return the results so far as named tensors, so that a checkpoint can save them."""
        return {"references": self._references, **self._tables}

    def restore(self, tensors: Mapping[str, Tensor]) -> float:
        """Restore saved results, and compare the model with the one that produced them.

        Args:
            tensors: Tensors that `saved_tensors` returned.

        Returns:
            Relative difference between the model's outputs for the first unshifted images and the
            saved outputs. It is infinite if the shape or the dtype of the outputs has changed.
        """
        images = self.batches[0][1]
        output = self._call_on_shifted_images(((self._zero,), images)).cpu()
        references = tensors["references"]
        if references.shape != self._references.shape or references.dtype != output.dtype:
            return math.inf
        self._references = references
        self._tables = {name: tensors[name] for name in tensors if name != "references"}
        is_known = self.evaluated[self._zero, images]
        return output_difference(output[is_known].float(), references[images][is_known].float())

    def responses(self) -> Responses:
        """Return the results so far."""
        return Responses(
            self._movement,
            self.shifts,
            self._output,
            labels=self._labels,
            epsilon=self._epsilon,
            **self._tables,
        )

    def _call_on_shifted_images(self, batch: Batch) -> Tensor:
        """Shift the images of a batch, call the model on them, and return its output."""
        shifts, images = batch
        prepared = self._movement.prepare_images(self._images[images].to(self._device))
        # Concatenate even a single shift, because the model may write into its input.
        moved = torch.cat([self._movement.move(prepared, self.shifts[shift]) for shift in shifts])
        first, *others = shifts
        more = f" and {len(others)} more" if others else ""
        where = f"at shift {self.shifts[first]}{more}, images {images.start} to {images.stop - 1}"
        output, kind = call_model(self._function, moved, where)
        if len(self._tables) == 1:
            self._infer_from_first_output(output, kind)
        output = flatten_vectors(output, self._output)
        references = self._references
        if output.shape[1:] != references.shape[1:] or output.dtype != references.dtype:
            shape = (len(moved), *references.shape[1:])
            raise ModelError(
                f"the output of the model {where} is {output.dtype} of shape "
                f"{tuple(output.shape)}, expected {references.dtype} of shape {shape}, as at first"
            )
        return output

    def _infer_from_first_output(self, output: Tensor, kind: str) -> None:
        """Infer the kind of all outputs from the first one, and allocate memory for comparisons."""
        label_axes = 0 if self._labels is None else self._labels.ndim
        asked = kind if self._output == "auto" else self._output
        self._output, self._stride = infer_kind(
            output, self._seen_size, asked, self._stride, label_axes
        )
        output = flatten_vectors(output, self._output)
        if self._stride is not None:
            compare_outputs.check_map_shifts(
                self.shifts, output.shape[2:], self._stride, self._seen_size, self._movement
            )
        if output.is_floating_point():
            self._epsilon = max(self._epsilon, torch.finfo(output.dtype).eps)
        self._labels = compare_outputs.encode_labels(self._labels, self._output, output.shape[1])
        self._references = torch.zeros(len(self._images), *output.shape[1:], dtype=output.dtype)

    def _compare_with_unshifted(
        self, output: Tensor, shift: int, images: slice
    ) -> compare_outputs.Tables:
        """Compare the outputs for images at one shift with the outputs for the unshifted images.

        Returns:
            Columns of the tables of `Responses`, with an entry for each image.
        """
        reference = self._references[images].to(output.device)
        if self._output == "boxes":
            overlap = compare_outputs.box_overlap(
                output, reference, self.shifts[shift], self._seen_size
            )
            return {
                "error_squared": (1 - overlap).square(),
                "norm_squared": torch.ones_like(overlap),
                "overlap": overlap,
            }
        if self._stride is None:
            errors = compare_outputs.compare_invariant_outputs(output, reference, self._output)
            if self._output == "features" and output.ndim == 2:
                indices = torch.arange(images.start, images.stop)
                errors |= compare_outputs.compare_features(output.cpu(), self._references, indices)
            return errors
        compared = compare_outputs.align_maps(
            output, reference, self.shifts[shift], self._stride, self._movement
        )
        errors = compare_outputs.squared_errors(*compared)
        if self._output == "segmentation":
            predicted, expected = (maps.argmax(dim=1) for maps in compared)
            errors["overlap"] = compare_outputs.segmentation_overlap(
                predicted, expected, output.shape[1]
            )
        return errors


class Checkpoint:
    """File in the safetensors format with the results of an unfinished measurement.

    Args:
        path: Path of the file. A missing folder is created together with the file.
        identity: Named strings that identify the measurement, such as the hash of the weights. A
            file of another measurement is rejected.
    """

    def __init__(self, path: str | Path, identity: Mapping[str, str]) -> None:
        require("safetensors.torch", "checkpoints need", "teka[audit]")
        import safetensors.torch

        self._library = safetensors
        self.path = check_file_is_writable("checkpoint", path)
        self._identity = {"format": FORMAT, **identity}
        self._written = time.perf_counter()
        self._pause = SECONDS_BETWEEN

    def read(self) -> dict[str, Tensor] | None:
        """Return the saved tensors, or None if the file does not exist.

        Raises:
            ValueError: The file is damaged or belongs to another measurement.
        """
        if not self.path.exists():
            return None
        wrong_file = partial(wrong_value, "checkpoint", str(self.path))
        try:
            with self._library.safe_open(str(self.path), framework="pt") as file:
                notes = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a mapping
            identity = json.loads(notes.get("identity", ""))
            if not isinstance(identity, dict):
                raise ValueError("the metadata are not a mapping")
        except (self._library.SafetensorError, ValueError, RecursionError) as error:
            raise wrong_file(f"a whole file of a measurement ({error})") from error
        names = self._identity.keys() | identity.keys()
        different = sorted(name for name in names if identity.get(name) != self._identity.get(name))
        if different:
            hint = f"These differ: {', '.join(different)}. Use another file."
            raise wrong_file("the state of this measurement", hint)
        if notes.get("sha256") != _content_hash(tensors):
            raise wrong_file("an unchanged file", "The file is damaged.")
        return tensors

    def write(self, tensors: Mapping[str, Tensor]) -> None:
        """Write tensors to the file, atomically."""
        start = time.perf_counter()
        notes = {"identity": json.dumps(self._identity), "sha256": _content_hash(tensors)}
        write_bytes(self.path, self._library.torch.save(dict(tensors), metadata=notes))
        self._written = time.perf_counter()
        self._pause = max(SECONDS_BETWEEN, TIMES_BETWEEN * (self._written - start))

    @property
    def is_due(self) -> bool:
        """True if it is time to write the file again.

        Two writes are at least 5 seconds apart, and writing takes at most 5 % of the time.
        """
        return time.perf_counter() - self._written >= self._pause


def _content_hash(tensors: Mapping[str, Tensor]) -> str:
    hashes = [f"{name} {tensor_hash(tensors[name])}\n" for name in sorted(tensors)]
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


class Deadline:
    """Time limit of a measurement, which starts when the object is created.

    Args:
        budget_seconds: Available time in seconds, or None for no limit.
    """

    def __init__(self, budget_seconds: float | int | None = None) -> None:
        self._budget = math.inf if budget_seconds is None else budget_seconds
        check_number("budget_seconds", self._budget, BUDGET, low=0, high=math.inf, exclude=(0,))
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds since the creation of this object."""
        return time.perf_counter() - self._start

    @property
    def seconds_left(self) -> float:
        """Seconds until the time limit, at least 0, or infinity if there is no limit."""
        return max(self._budget - self.seconds, 0.0)


def measure_responses(
    function: Model,
    images: ImageSet,
    shifts: SubpixelShifts,
    movement: Movement,
    *,
    labels: Shaped[Tensor, "images *labels"] | None = None,
    output: str = "auto",
    stride: Size | None = None,
    batch_size: int = 256,
    device: Device = None,
    budget_seconds: float | int | None = None,
    progress: Progress | None = None,
    checkpoint: str | Path | None = None,
) -> Responses:
    """Evaluate a model on every image at every shift, and measure how its outputs change.

    An invariant model, such as an ideal classifier, returns the same output at every shift. If the
    output is a map or boxes, the output of an equivariant model moves with the image. The result
    contains the errors, which are the deviations from these expected outputs, and the predictions
    of classifiers. Its tensors are on the CPU.

    If the time limit is reached, the mask `evaluated` of the result is False for the images and
    shifts that are missing. Coarse shifts come first, so that the whole range is covered.

    The expected map for a shift by s pixels is the map of the unshifted image, moved by s / r cells
    at a stride of r pixels per cell. In modes without circular edges, only cells whose content is
    inside the image before and after the shift are compared. A map can be moved exactly only if s
    is a multiple of r, so other shifts are rejected. There are two exceptions: mode "fourier"
    interpolates the map too, and mode "bilinear" does so at stride 1.

    >>> import torch
    >>> from torch import nn
    >>> from teka.audit import Movement, measure_responses, square_shifts
    >>> model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    >>> images = torch.rand(20, 1, 8, 8)

    >>> responses = measure_responses(model, images, square_shifts(1), Movement("circular"))
    >>> responses.output, responses.predictions.shape
    ('logits', torch.Size([9, 20]))

    Args:
        function: Function or module that takes images (B, C, *S). It returns an output of a kind in
            `teka.audit.model_output.KINDS`, such as logits (B, K), probabilities, classes (B,),
            features (B, …) or maps (B, C', *S'), or an object with such an output in a field.
        images: Images (N, C, *S).
        shifts: The shifts, including zero. Duplicates are ignored.
        movement: How the images are shifted.
        labels: Classes (N,) as integers from 0 to K − 1, or multi-label targets (N, K) of 0 and 1,
            or None. Only predictions of classifiers are compared with labels.
        output: Kind of the output, a name of `teka.audit.model_output.KINDS`, or "auto":

            - maps are dense outputs if their sizes divide those of the images and are not all 1
            - integers (B,) are classes
            - with labels (N, K), an output (B, K) contains a logit or a probability for each label
            - other outputs (B, K), or (B,) for two classes, are probabilities if they lie in
              [0, 1] and sum to 1, and logits otherwise
            - all other outputs are features

            Axes of size 1 are ignored, so (B, K, 1, 1) is treated as (B, K).
        stride: Pixels per cell of a dense output that does not cover the whole image. Default:
            the size of the image divided by the size of the output.
        batch_size: Number of images per call.
        device: Device on which images are shifted and passed to the model. Default: the device of
            the images.
        budget_seconds: Time limit in seconds. No call of the model starts after this time, except
            for the first call, which is always made.
        progress: Function that is called after each call of the model, with the number of finished
            entries (images times shifts), the total number of entries, and the estimated number of
            seconds left.
        checkpoint: File in which the state is saved from time to time, at the end, and on
            interruption. If the file exists, the measurement resumes from it. An additional call
            then checks that the model is the same.

    Raises:
        ModelError: The model raised an error, or returned NaN, infinity or an unsupported output.
        ValueError: A module is in training mode, an argument does not fit the images, or the output
            is not of the requested kind.
        ImportError: `checkpoint` is given but safetensors is not installed.
    """
    check_sizes({"batch_size": batch_size})
    if progress is not None:
        check_callable("progress", progress)
    deadline = Deadline(budget_seconds)
    evaluator = BatchEvaluator(
        function, images, shifts, movement, labels, output, stride, device, batch_size
    )
    saved = None
    if checkpoint is not None:
        identity = {
            "weights": weights_hash(function),
            "images": tensor_hash(images),
            "labels": "none" if labels is None else tensor_hash(labels),
            "shifts": json.dumps(evaluator.shifts),
            "movement": json.dumps(encode(movement)),
            "output": json.dumps([output, stride]),
        }
        saved = Checkpoint(checkpoint, identity)
        tensors = saved.read()
        difference = 0.0 if tensors is None else evaluator.restore(tensors)
        if not difference <= SAME_MODEL:
            hint = f"Its outputs for the unshifted images differ by {difference:.2g} of their norm."
            raise wrong_value("checkpoint", str(saved.path), "the state of this model", hint)
    evaluated = evaluator.evaluated
    start = done = int(evaluated.sum())
    try:
        for batch in evaluator.batches:
            if done > start and not deadline.seconds_left:
                break
            if evaluated[list(batch[0]), batch[1]].all():
                continue
            evaluator.evaluate_batch(batch)
            done = int(evaluated.sum())
            if progress is not None:
                total = evaluated.numel()
                seconds = deadline.seconds / (done - start) * (total - done)
                progress(done, total, min(seconds, deadline.seconds_left))
            if saved is not None and saved.is_due:
                saved.write(evaluator.saved_tensors())
    except ModelError as error:
        if evaluated.any():
            error.responses = evaluator.responses()
        raise
    finally:
        if saved is not None and int(evaluated.sum()) > start:
            saved.write(evaluator.saved_tensors())
    return evaluator.responses()
