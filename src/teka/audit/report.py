"""Everything that an audit found, as it is written to a file and read back."""

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from teka.audit.caveats import Caveat
from teka.audit.example import Example
from teka.audit.layers.findings import LayerFindings
from teka.audit.measure.distances import NoiseFloor, SensitivityMap
from teka.audit.measure.lie_derivative import LieDerivative
from teka.audit.measure.responses import Responses
from teka.audit.movement import Movement
from teka.audit.procedures import PresetResult
from teka.audit.statistics.metrics import Metrics
from teka.audit.statistics.phase import PhaseTable
from teka.codec import decode, encode
from teka.errors import wrong_value
from teka.files import read_json, write_json

SCHEMA = 2
READ_SCHEMAS = (1, SCHEMA)
# What a comparison of two models needs of each; the loss is not compared.
PACKED_TABLES = ("evaluated", "error_squared", "norm_squared", "predictions", "probability_change", "divergence")


@dataclass(frozen=True)
class Failure:
    """A part of an audit that could not be done, while the rest was."""

    part: str
    message: str
    traceback: str = ""  # of what was raised, as Python prints it


@dataclass(frozen=True)
class PackedResponses:
    """What a model answered for every image at every shift, as text: what a comparison with another model needs.

    The tables are those of `Responses` but the loss, with the labels, as a compressed .npz file in base64: numbers in
    single precision, classes in the fewest bytes that hold them.
    """

    movement: Movement
    shifts: tuple[tuple[int | float, ...], ...]
    output: str
    tables: str

    @classmethod
    def pack(cls, responses: Responses) -> "PackedResponses":
        """What a model answered, ready to be kept in a report."""
        arrays = {}
        for name in (*PACKED_TABLES, "labels"):
            table = getattr(responses, name)
            if table is not None:
                arrays[name] = _smallest(table.cpu().numpy())
        file = io.BytesIO()
        np.savez_compressed(file, **arrays)
        return cls(
            responses.movement, responses.shifts, responses.output, base64.b64encode(file.getvalue()).decode("ascii")
        )

    def unpack(self) -> Responses:
        """The responses, for `teka.audit.compare_responses`; without the loss and the times."""
        try:
            with np.load(io.BytesIO(base64.b64decode(self.tables, validate=True)), allow_pickle=False) as file:
                tables: dict[str, Any] = {name: torch.from_numpy(file[name]) for name in file.files}
            for name, table in tables.items():
                if name != "evaluated":
                    tables[name] = table.to(torch.float64 if table.is_floating_point() else torch.int64)
            return Responses(self.movement, self.shifts, self.output, **tables)
        # What damaged archives raise depends on where the damage is.
        except Exception as error:
            raise ValueError(f"the responses of the report are damaged: {error}") from error


def _smallest(table: np.ndarray) -> np.ndarray:
    """The table in single precision, if that holds its squares, or in the smallest integers that hold it."""
    if table.dtype.kind == "f":
        with np.errstate(over="ignore"):
            single = table.astype(np.float32)
        return single if np.allclose(single, table, rtol=1e-6, atol=0) else table
    if table.dtype.kind == "b" or not table.size:
        return table
    return table.astype(np.promote_types(np.min_scalar_type(table.min()), np.min_scalar_type(table.max())))


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
        caveats: What could make these numbers mislead.
        failures: Parts that could not be done.
        examples: Images whose answer changes most, with the answers at every shift.
        verdict: What it comes to, in plain sentences, the first the headline.
        provenance: Command, date, hardware, versions, seconds.
        responses: What the model answered, for each entry of `metrics`; none in reports of older versions.
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
    caveats: tuple[Caveat, ...]
    failures: tuple[Failure, ...]
    examples: tuple[Example, ...]
    verdict: tuple[str, ...]
    provenance: dict[str, object]
    responses: tuple[PackedResponses, ...] = ()

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
        """All fields, ready for JSON, and the mean of each derivative for readers."""
        content = encode(self)
        for written, one in zip(content["lie_derivative"], self.lie_derivative, strict=True):
            written["mean"] = one.mean
        return {"schema": SCHEMA, **content}

    @classmethod
    def from_dict(cls, content: Mapping[str, object]) -> "AuditReport":
        """What `to_dict` wrote, or that of an older version, whose caveats were called traps.

        Raises:
            ValueError: Another schema, or a missing or unknown field.
        """
        fields = dict(content)
        schema = fields.pop("schema", None)
        if schema not in READ_SCHEMAS:
            expected = f"one of {', '.join(map(str, READ_SCHEMAS))}, which this version of teka reads"
            raise wrong_value("schema", schema, expected)
        if "traps" in fields:
            fields["caveats"] = fields.pop("traps")
        derivatives = fields.get("lie_derivative")
        if isinstance(derivatives, list):
            fields["lie_derivative"] = [
                {name: value for name, value in dict(one).items() if name != "mean"} for one in derivatives
            ]
        try:
            return decode(cls, fields)
        except ValueError as error:
            raise ValueError(f"this is no audit's report: {error}") from error

    def write(self, path: str | Path) -> Path:
        """Write the report as JSON, whole or not at all."""
        return write_json(Path(path), self.to_dict())

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
