"""Everything that an audit found, as it is written to a file and read back."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from teka.audit.example import Example
from teka.audit.layers import LayerFindings
from teka.audit.measure.lie_derivative import LieDerivative
from teka.audit.measure.noise_floor import NoiseFloor
from teka.audit.measure.sensitivity_map import SensitivityMap
from teka.audit.phase import PhaseTable
from teka.audit.presets import PresetResult
from teka.audit.statistics.metrics import Metrics
from teka.audit.traps.trap import Trap
from teka.errors import wrong_value
from teka.files import read_json, write_json

SCHEMA = 1


@dataclass(frozen=True)
class Failure:
    """A part of an audit that could not be done, while the rest was.

    Args:
        part: Which part.
        message: Why.
    """

    part: str
    message: str


@dataclass(frozen=True)
class AuditReport:
    """Everything that an audit found.

    Args:
        name: What to call the model.
        model: Facts of the model: what it is, its parameters, a hash of its weights.
        data: Facts of the images: their number, shape, classes, a hash.
        settings: What was asked for.
        metrics: The numbers, one entry for each mode, in the order asked for.
        phases: For each mode, errors by the phase of the shift in the model's coarsest grid.
        noise_floor: How much two calls differ that should not, or None.
        lie_derivative: Change per pixel for infinitesimal shifts, along dy and dx; fewer where it failed.
        sensitivity: For each mode, the translation-sensitivity map.
        layers: The layers, and the first that breaks, or None.
        presets: What procedures of the literature gave.
        traps: What could make these numbers mislead.
        failures: Parts that could not be done.
        examples: Images whose answer changes most, with the answers at every shift.
        verdict: What it comes to, in plain sentences, the first the headline.
        provenance: Command, date, hardware, versions, seconds.
    """

    name: str
    model: dict[str, object]
    data: dict[str, object]
    settings: dict[str, object]
    metrics: tuple[Metrics, ...]
    phases: dict[str, PhaseTable]
    noise_floor: NoiseFloor | None
    lie_derivative: tuple[LieDerivative, ...]
    sensitivity: dict[str, SensitivityMap]
    layers: LayerFindings | None
    presets: tuple[PresetResult, ...]
    traps: tuple[Trap, ...]
    failures: tuple[Failure, ...]
    examples: tuple[Example, ...]
    verdict: tuple[str, ...]
    provenance: dict[str, object]

    def number(self, name: str) -> float:
        """The lowest value of a number over the modes, as a gate wants it.

        Args:
            name: One of `teka.audit.statistics.metrics.NUMBERS`.

        Raises:
            ValueError: No mode has it.
        """
        found = [one.numbers[name].value for one in self.metrics if name in one.numbers]
        if not found:
            known = sorted({key for one in self.metrics for key in one.numbers})
            raise wrong_value("metric", name, f"one that was measured: {', '.join(known) or 'none was'}")
        return min(found)

    def to_dict(self) -> dict[str, object]:
        """All fields, ready for JSON."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "model": self.model,
            "data": self.data,
            "settings": self.settings,
            "metrics": [one.to_dict() for one in self.metrics],
            "phases": {mode: table.to_dict() for mode, table in self.phases.items()},
            "noise_floor": None if self.noise_floor is None else self.noise_floor.to_dict(),
            "lie_derivative": [one.to_dict() for one in self.lie_derivative],
            "sensitivity": {mode: one.to_dict() for mode, one in self.sensitivity.items()},
            "layers": None if self.layers is None else self.layers.to_dict(),
            "presets": [one.to_dict() for one in self.presets],
            "traps": [trap.to_dict() for trap in self.traps],
            "failures": [vars(failure) for failure in self.failures],
            "examples": [example.to_dict() for example in self.examples],
            "verdict": list(self.verdict),
            "provenance": self.provenance,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, object]) -> "AuditReport":
        """What `to_dict` wrote.

        Raises:
            ValueError: Another schema, or a missing or unknown field.
        """
        fields = dict(content)
        schema = fields.pop("schema", None)
        if schema != SCHEMA:
            raise wrong_value("schema", schema, f"{SCHEMA}, the one that this version of teka writes")
        readers = {
            "metrics": lambda found: tuple(map(Metrics.from_dict, found)),
            "phases": lambda found: {mode: PhaseTable.from_dict(table) for mode, table in found.items()},
            "noise_floor": lambda found: None if found is None else NoiseFloor.from_dict(found),
            "lie_derivative": lambda found: tuple(map(LieDerivative.from_dict, found)),
            "sensitivity": lambda found: {mode: SensitivityMap.from_dict(one) for mode, one in found.items()},
            "layers": lambda found: None if found is None else LayerFindings.from_dict(found),
            "presets": lambda found: tuple(map(PresetResult.from_dict, found)),
            "traps": lambda found: tuple(map(Trap.from_dict, found)),
            "failures": lambda found: tuple(Failure(**one) for one in found),
            "examples": lambda found: tuple(map(Example.from_dict, found)),
            "verdict": tuple,
        }
        try:
            return cls(**{name: readers.get(name, lambda found: found)(value) for name, value in fields.items()})  # pyright: ignore[reportArgumentType]
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"this is no audit's report: {error}") from error

    def write(self, path: str | Path) -> Path:
        """Write the report as JSON, whole or not at all.

        Args:
            path: The file.
        """
        write_json(Path(path), self.to_dict())
        return Path(path)

    @classmethod
    def read(cls, path: str | Path) -> "AuditReport":
        """Read a report that `write` wrote.

        Raises:
            ValueError: No such file, not JSON, or not an audit's report; the message names the file.
        """
        try:
            return cls.from_dict(read_json(Path(path)))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
