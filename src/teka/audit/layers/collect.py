"""From what two passes measured to the findings: one entry for a layer, and the first that break."""

from collections.abc import Mapping, Sequence

from torch import nn

from teka.audit.layers.first_breaks import first_breaks
from teka.audit.layers.layer_break import LayerBreak
from teka.audit.layers.layer_finding import LayerFinding
from teka.audit.layers.measured import Measured
from teka.audit.layers.shift_errors import ShiftErrors
from teka.audit.layers.survey import Stop, Survey
from teka.audit.layers.trace import call_name

# Without a threshold given: 1e-4, or so many roundings of the coarsest dtype among the layers.
THRESHOLD = 1e-4
THRESHOLD_ROUNDINGS = 4
# A module that gives what a part of it gave is listed too if it adds so many times as much error as any part.
PART_FACTOR = 2.0


class Collection:
    """What two passes measured, sorted by layer.

    Args:
        followed: The modules that were followed, by name.
        survey: The first pass.
        errors: The second pass.
        threshold: The error below which no layer breaks; by default 1e-4, or 4 roundings of the layers' dtype.

    Attributes:
        threshold: The threshold that is used.
        breaks: The first break of each kind.
    """

    def __init__(
        self, followed: Mapping[str, nn.Module], survey: Survey, errors: ShiftErrors, threshold: int | float | None
    ) -> None:
        if threshold is None:
            coarsest = max((slot.epsilon for slot in survey.slots), default=0.0)
            threshold = max(THRESHOLD, THRESHOLD_ROUNDINGS * coarsest)
        self.threshold = threshold
        self._followed, self._survey, self._errors = followed, survey, errors
        self._measured = {
            index: Measured(slot, errors.errors(index))
            for index, slot in enumerate(survey.slots)
            if index not in errors.failed
        }
        kinds = {name: type(part).__name__ for name, part in followed.items()}
        self.breaks: dict[str, LayerBreak] = first_breaks(
            survey.stops, self._measured, kinds, tuple(survey.flattened), threshold
        )

    def findings(self, always: Sequence[str]) -> tuple[LayerFinding, ...]:
        """The layers in the order in which they finished.

        A module that hands on what it got, or what a part of it gave, is listed if it is to blame, if it adds far more
        error than any of its parts, or if it is named.

        Args:
            always: Names of modules that are listed in any case.
        """
        blamed = {one.name for one in self.breaks.values()}
        found: list[LayerFinding] = []
        added: dict[str, float] = {}
        given: set[int | None] = set()
        inputs: dict[tuple[str, int], int | None] = {}
        for stop in self._survey.stops:
            module = stop.visit.module
            key = (module, stop.visit.call)
            if stop.visit.side == "input":
                inputs[key] = stop.slot
                continue
            numbers = self._numbers(stop.slot)
            if numbers is None:
                continue
            one = self._finding(stop, numbers, self._numbers(inputs[key]))
            hands_on = stop.slot == inputs[key] or stop.slot in given
            by_parts = max((more for part, more in added.items() if _is_part(part, module)), default=0.0)
            adds_more = (one.added or 0.0) > max(one.limit(self.threshold), PART_FACTOR * by_parts)
            if not hands_on or adds_more or module in always or one.name in blamed:
                given.add(stop.slot)
                added[module] = max(one.added or 0.0, added.get(module, 0.0))
                found.append(one)
        return tuple(found)

    def skipped(self) -> dict[str, str]:
        """For each module that could not be compared, why."""
        reasons = {}
        for stop in self._survey.stops:
            if stop.visit.side == "output" and self._numbers(stop.slot) is None:
                reason = stop.reason if stop.slot is None else self._errors.failed[stop.slot]
                reasons[call_name(stop.visit.module, stop.visit.call)] = reason
        called = {stop.visit.module for stop in self._survey.stops}
        return reasons | {call_name(name, 1): "it was not called" for name in self._followed if name not in called}

    def _numbers(self, slot: int | None) -> Measured | None:
        return None if slot is None else self._measured.get(slot)

    def _finding(self, stop: Stop, numbers: Measured, before: Measured | None) -> LayerFinding:
        layout = numbers.slot.layout
        return LayerFinding(
            name=call_name(stop.visit.module, stop.visit.call),
            kind=stop.kind,
            layout=layout.name,
            grid=layout.grid,
            stride=tuple(int(step) if step.denominator == 1 else float(step) for step in layout.stride),
            prefix_tokens=layout.prefix_tokens,
            interior_error=numbers.interior,
            border_error=numbers.border,
            aliasing_error=numbers.aliasing,
            noise=numbers.slot.noise,
            added=None if before is None else numbers.added_to(before),
            error=numbers.every,
            border=numbers.slot.border,
            exact_step=numbers.exact_step(self._errors.shifts, self.threshold),
            errors=tuple(one.counted for one in numbers.by_shift),
        )


def _is_part(name: str, module: str) -> bool:
    return name != module and (not module or name.startswith(f"{module}."))
