"""The numbers of one tensor over all shifts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from teka.audit.layers.layer_finding import NOISE_FACTOR
from teka.audit.layers.shift_errors import ShiftError
from teka.audit.layers.survey import Slot


@dataclass(frozen=True)
class Measured:
    """The numbers of one tensor over all shifts.

    Args:
        slot: The tensor.
        by_shift: Its error at every shift.
    """

    slot: Slot
    by_shift: tuple[ShiftError, ...]

    @property
    def interior(self) -> float | None:
        """Largest error of the interior at multiples of the stride."""
        return _largest(one.interior for one in self.by_shift if one.is_multiple)

    @property
    def border(self) -> float | None:
        """Largest error of the border at multiples of the stride."""
        return _largest(one.border for one in self.by_shift if one.is_multiple)

    @property
    def aliasing(self) -> float | None:
        """Largest error at the other shifts."""
        return _largest(one.counted for one in self.by_shift if not one.is_multiple)

    @property
    def every(self) -> float | None:
        """Largest error of all cells that came from inside, at multiples of the stride."""
        return _largest(one.every for one in self.by_shift if one.is_multiple)

    @property
    def has_interior(self) -> bool:
        """Whether there are cells that the edge cannot reach, at some shift."""
        return any(one.interior is not None for one in self.by_shift)

    def limit(self, threshold: int | float) -> float:
        """The error above which a layer that gives it breaks."""
        return max(threshold, NOISE_FACTOR * self.slot.noise)

    def added_to(self, before: "Measured") -> float | None:
        """What is added to the error of another tensor, at shifts that are multiples of both strides."""
        both = [
            (one.every, other.every)
            for one, other in zip(self.by_shift, before.by_shift, strict=True)
            if one.is_multiple and other.is_multiple and one.every is not None and other.every is not None
        ]
        return max(one for one, _ in both) - max(other for _, other in both) if both else None

    def exact_step(self, shifts: Sequence[Sequence[int | float]], threshold: int | float) -> tuple[int | None, ...]:
        """The fewest pixels along each axis such that every shift by a multiple of them alone is within the limit.

        Args:
            shifts: The shifts of `by_shift`.
            threshold: The error below which no layer breaks.
        """
        return tuple(self._exact_step(axis, shifts, self.limit(threshold)) for axis in range(len(shifts[0])))

    def _exact_step(self, axis: int, shifts: Sequence[Sequence[int | float]], limit: int | float) -> int | None:
        within: dict[int | float, bool] = {}
        for shift, one in zip(shifts, self.by_shift, strict=True):
            is_alone = all(not step or other == axis for other, step in enumerate(shift))
            if is_alone and one.counted is not None:
                step = abs(shift[axis])
                within[step] = within.get(step, True) and one.counted <= limit
        whole = sorted(int(step) for step in within if step == int(step))
        return next((one for one in whole if all(within[step] for step in within if step % one == 0)), None)


def _largest(errors: Iterable[float | None]) -> float | None:
    return max((error for error in errors if error is not None), default=None)
