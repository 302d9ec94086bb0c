"""What a model answered so far, entry by entry, in the order of measurement."""

import time
from collections.abc import Iterable, Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from teka.audit.function import ModelError
from teka.audit.measure.moved_images import RESIDENT_BYTES, MovedImages
from teka.audit.measure.responses import Responses
from teka.audit.movement import Movement
from teka.errors import wrong_value

# Outputs wait until there are so many numbers or calls of them, or for so long: with few numbers it is calls of torch
# that take the time.
WAITING_NUMBERS, WAITING_CALLS, WAITING_SECONDS = 2**16, 16, 0.5
OF_LOGITS = ("loss", "probability_change", "divergence")


class ResponseTable:
    """What a model answered so far.

    The outputs for the unshifted images are kept, to compare the others with: N · K numbers of logits,
    N · C' · H' · W' of dense maps; on the device if they fit into 1 GiB there. Labels are classes (N,) in int64 on the
    CPU; the first output of the model tells shape, dtype and device.
    """

    def __init__(
        self,
        moved: MovedImages,
        labels: Int[Tensor, " images"] | None,
        output_name: str,
        stride: tuple[int, ...] | None,
        seen_size: Sequence[int],
        output: Float[Tensor, "batch ..."],
    ) -> None:
        if stride is not None:
            check_dense_shifts(moved.shifts, output.shape[2:], stride, seen_size, moved.movement)
        if output_name == "logits" and labels is not None and int(labels.max()) >= output.shape[1]:
            raise wrong_value("labels", int(labels.max()), f"classes below {output.shape[1]}, the number of logits")
        self._output_name, self._stride, self._moved, self._labels = output_name, stride, moved, labels
        fits = moved.num_images * output[0].numel() * output.element_size() <= RESIDENT_BYTES
        self.references = torch.zeros(
            moved.num_images, *output.shape[1:], dtype=output.dtype, device=output.device if fits else "cpu"
        )
        names = ["error_squared", "norm_squared"]
        if output_name == "logits":
            names += OF_LOGITS if labels is not None else OF_LOGITS[1:]
        self._columns = {name: torch.zeros(len(moved), dtype=torch.float64) for name in names}
        self._predictions = torch.full((len(moved),), -1) if output_name == "logits" else None
        self._evaluated = torch.zeros(len(moved), dtype=torch.bool)
        self._waiting: list[tuple[Tensor, Tensor]] = []
        self._noted_at = time.perf_counter()

    def add(self, entries: Int[Tensor, " batch"], output: Float[Tensor, "batch ..."]) -> None:
        """Take the output (B, …) of a batch of entries, which ascend from batch to batch.

        Small outputs wait until there are enough of them, and are noted together.
        """
        if output.shape[1:] != self.references.shape[1:]:
            raise ModelError(
                f"the output of the model has shape {tuple(output.shape)} "
                f"{self._moved.where(self._moved.segments(entries))}, expected "
                f"{(len(entries), *self.references.shape[1:])}, as at first"
            )
        # A copy, because the function may use one buffer for all its outputs.
        large = output.numel() >= WAITING_NUMBERS
        self._waiting.append((entries, output if large else output.clone()))
        waited = time.perf_counter() - self._noted_at
        if large or len(self._waiting) >= WAITING_CALLS or waited >= WAITING_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Note the outputs that wait."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        parts = tuple(zip(*waiting, strict=True))
        entries, output = (part[0] if len(part) == 1 else torch.cat(part) for part in parts)
        lost = _not_finite(output)
        sound = int(lost.to(torch.uint8).argmax()) if lost.any() else len(entries)
        if sound:
            self._note(entries[:sound], output[:sound])
        if sound < len(entries):
            raise ModelError(f"the output of the model holds NaN or infinity {self._counted(entries, lost)}")

    @property
    def noted(self) -> int:
        """Number of entries noted."""
        return int(self._evaluated.sum())

    def wrong(self, entries: Int[Tensor, " batch"]) -> Tensor:
        """Which of these entries were answered wrongly; needs labels and logits."""
        self.flush()
        assert self._predictions is not None
        assert self._labels is not None
        return self._predictions[entries] != self._labels[entries % self._moved.num_images]

    def tensors(self) -> dict[str, Tensor]:
        """All of it, to be written to a file."""
        return {"references": self.references, **self._tables()}

    def _tables(self) -> dict[str, Tensor]:
        tables = {"evaluated": self._evaluated, **self._columns}
        return tables if self._predictions is None else {**tables, "predictions": self._predictions}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Resume from what `tensors` gave."""
        for name, tensor in self.tensors().items():
            stored = tensors.get(name)
            if stored is None or stored.shape != tensor.shape or stored.dtype != tensor.dtype:
                raise wrong_value(f"{name} of the checkpoint", "missing or of another shape", f"{tuple(tensor.shape)}")
            tensor.copy_(stored)

    def responses(self, calls: int, seconds: float, forward_seconds: float) -> Responses:
        """The table with its shifts in the order in which they were given."""
        place = torch.tensor(self._moved.order).argsort()
        tables = {name: values.reshape(len(place), -1)[place] for name, values in self._tables().items()}
        return Responses(
            self._moved.movement,
            self._moved.given_shifts,
            self._output_name,
            labels=self._labels,
            calls=calls,
            seconds=seconds,
            forward_seconds=forward_seconds,
            **tables,
        )

    def _note(self, entries: Tensor, output: Tensor) -> None:
        images = entries % self._moved.num_images
        unshifted = int((entries < self._moved.num_images).sum())
        if unshifted:
            device = self.references.device
            self.references[images[:unshifted].to(device)] = output[:unshifted].to(device)
        stride = self._stride
        noted = self._compare(images, output) if stride is None else self._compare_maps(entries, output, stride)
        for name, values in noted.items():
            self._columns[name][entries] = values.cpu().to(torch.float64)
        if self._predictions is not None:
            self._predictions[entries] = output.argmax(dim=1).cpu()
        self._evaluated[entries] = True
        self._noted_at = time.perf_counter()

    def _compare_maps(self, entries: Tensor, output: Tensor, stride: tuple[int, ...]) -> dict[str, Tensor]:
        pairs = []
        for one in self._moved.segments(entries):
            reference = self.references[one.images].to(output.device)
            shift = self._moved.shifts[one.rank]
            pairs.append(dense_error(output[one.rows], reference, shift, stride, self._moved.movement))
        errors, norms = zip(*pairs, strict=True)
        return {"error_squared": torch.cat(errors), "norm_squared": torch.cat(norms)}

    def _compare(self, images: Tensor, output: Tensor) -> dict[str, Tensor]:
        reference = self.references[images.to(self.references.device)].to(output.device)
        noted = {"error_squared": sum_of_squares(output, reference), "norm_squared": sum_of_squares(reference)}
        if self._output_name == "features":
            return noted
        log_moved, log_unshifted = torch.stack([output, reference]).to(sum_dtype(output.device)).log_softmax(dim=2)
        probability = log_unshifted.exp()
        top = reference.argmax(dim=1, keepdim=True)
        noted["probability_change"] = (log_moved.gather(1, top).exp() - probability.gather(1, top)).abs()[:, 0]
        # Rounding may bring it below zero.
        noted["divergence"] = (probability * (log_unshifted - log_moved)).sum(dim=1).clamp(min=0)
        if self._labels is not None:
            truth = self._labels[images].to(output.device)[:, None]
            noted["loss"] = -log_moved.gather(1, truth)[:, 0]
        return noted

    def _counted(self, entries: Tensor, lost: Tensor) -> str:
        counts = [
            (self._moved.shifts[one.rank], int(lost[one.rows].sum()), len(lost[one.rows]))
            for one in self._moved.segments(entries)
        ]
        named = [f"at shift {shift} for {count} of {asked} images" for shift, count, asked in counts if count]
        more = f" and at {len(named) - 3} more shifts" if len(named) > 3 else ""
        return ", ".join(named[:3]) + more


def _not_finite(output: Tensor) -> Tensor:
    """Which entries of a batch hold NaN or infinity."""
    axes = tuple(range(1, output.ndim))
    # A sum is finite only if all its terms are, and it takes a fortieth of the time of looking at each; where it is
    # not, it may have overflowed.
    if output.sum(dim=axes, dtype=torch.promote_types(output.dtype, torch.float32)).isfinite().all():
        return torch.zeros(len(output), dtype=torch.bool)
    return ~output.isfinite().flatten(1).all(dim=1).cpu()


def check_dense_shifts(
    shifts: Iterable[Sequence[int | float]],
    size: Sequence[int],
    stride: Sequence[int],
    seen_size: Sequence[int],
    movement: Movement,
) -> None:
    """Check that maps of some size and stride, of images of the size seen, have an exact counterpart at every shift.

    A shift by s pixels moves a map of stride r by s / r cells, which must be a whole number. In mode `fourier` the map
    is moved by the same interpolation and any shift will do; in mode `bilinear`, on axes of stride 1.
    """
    mode = movement.mode
    sides = list(zip(size, stride, strict=True))
    if movement.wraps and [cells * pixels for cells, pixels in sides] != list(seen_size):
        expected = f"{tuple(seen_size)} over {tuple(size)}, images over maps, since mode {mode!r} has circular edges"
        raise wrong_value("stride", tuple(stride), expected)
    for shift in shifts:
        for (cells, pixels), step in zip(sides, shift, strict=True):
            between = step % pixels != 0 and mode != "fourier" and not (mode == "bilinear" and pixels == 1)
            if between:
                expected = f"whole multiples of the stride {tuple(stride)} of the model's dense output in mode {mode!r}"
                raise wrong_value("shifts", f"a set with {tuple(shift)}", expected)
            if not movement.wraps and abs(step) >= cells * pixels:
                expected = f"shifts that leave some of the model's {tuple(size)} cells in sight"
                raise wrong_value("shifts", f"a set with {tuple(shift)}", expected)


def dense_error(
    response: Float[Tensor, "batch channels *cells"],
    reference: Float[Tensor, "batch channels *cells"],
    shift: Sequence[int | float],
    stride: Sequence[int],
    movement: Movement,
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """‖f(T_s x) − T_s f(x)‖² and ‖T_s f(x)‖² of each image, at a shift that `check_dense_shifts` has passed.

    With circular edges all cells count; in the other modes those whose content came from inside the map.
    """
    steps = tuple([step / pixels for step, pixels in zip(shift, stride, strict=True)])
    if not movement.wraps:
        # The window of a moved map that shows what was in the map before; of the map before it, that of −s.
        ahead, behind = (
            tuple([slice(step, None) if step >= 0 else slice(None, step) for step in whole])
            for whole in ([int(step) for step in steps], [-int(step) for step in steps])
        )
        response, reference = response[(..., *ahead)], reference[(..., *behind)]
    elif all(map(float.is_integer, steps)):
        reference = torch.roll(reference, [int(step) for step in steps], dims=tuple(range(2, reference.ndim)))
    else:
        reference = movement.move(reference, steps)
    return sum_of_squares(response, reference), sum_of_squares(reference)


def sum_of_squares(values: Tensor, subtracted: Tensor | None = None) -> Float[Tensor, " batch"]:
    """‖values − subtracted‖² of each entry of a batch (B, C, …).

    Within a channel the squares are summed in the dtype of the values, at least float32, for which torch adds halves to
    halves; over channels in float64 (float32 on devices that lack it). All in float64 takes four times as long.
    """
    # Half-precision squares overflow soon.
    exact = torch.promote_types(values.dtype, torch.float32)
    squares = values.to(exact).square() if subtracted is None else (values.to(exact) - subtracted.to(exact)).square_()
    within = squares.flatten(2).sum(dim=2) if squares.ndim > 2 else squares
    return within.sum(dim=1, dtype=sum_dtype(values.device))


def sum_dtype(device: torch.device) -> torch.dtype:
    """The dtype in which numbers of many parts are summed: float64, or float32 on devices that lack it."""
    return torch.float32 if device.type == "mps" else torch.float64
