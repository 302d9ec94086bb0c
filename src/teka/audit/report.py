"""Everything that an audit found, with images that show it, as it is written to a file and read back."""

import base64
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from teka.audit.caveats import Caveat
from teka.audit.function import call_model
from teka.audit.layers.blame import LayerFindings
from teka.audit.measure.distances import NoiseFloor, SensitivityMap
from teka.audit.measure.lie_derivative import LieDerivative
from teka.audit.measure.responses import Responses
from teka.audit.model_output import CLASSIFIERS, MULTILABEL, predict_with_probability
from teka.audit.movement import Movement
from teka.audit.procedures import PresetResult
from teka.audit.settings import AuditSettings
from teka.audit.statistics.metrics import Metrics
from teka.audit.statistics.phase import PhaseTable
from teka.checks import check_path
from teka.codec import decode, encode
from teka.errors import wrong_type, wrong_value
from teka.files import check_output_file, check_unpacked_size, read_json, write_json

SCHEMA = 2
VALIDITY, NOISE = (
    "validity",
    "noise floor",
)  # the parts of an audit that check the responses, and repeat a call
READ_SCHEMAS = (1, SCHEMA)
# What a comparison of two models needs of each; the loss is not compared.
PACKED = (
    "evaluated",
    "error_squared",
    "norm_squared",
    "predictions",
    "probability_change",
    "divergence",
    "labels",
)
PACKED += ("overlap", "cosine_distance", "rank")


@dataclass(frozen=True)
class Failure:
    """A part of an audit that could not be done, while the rest was."""

    part: str
    message: str
    traceback: str = ""  # of what was raised, as Python prints it

    @property
    def decides(self) -> bool:
        """Return True if a gate cannot be decided without this part: a mode, or a check of validity."""
        return self.part.startswith("mode ") or self.part in (VALIDITY, NOISE)


@dataclass(frozen=True)
class Example:
    """One image and what the model answered at every shift (dy, dx), with the probability it gave that class."""

    mode: str
    index: int  # among the images
    label: int | None
    image: str  # levels of the placed image before any shift, bytes of shape (H, W, C) in base64
    height: int
    width: int
    channels: int  # 1 or 3
    shifts: tuple[tuple[int | float, ...], ...]
    predictions: tuple[int, ...]
    probabilities: tuple[float, ...]


@dataclass(frozen=True)
class ChangeResult:
    """What a model does when its images change otherwise than by a shift; the shifts of the numbers are amounts."""

    metrics: Metrics
    # The same images changed and changed back: what is left is what interpolation does. None of an exact change.
    there_and_back: Metrics | None


@dataclass(frozen=True)
class PackedResponses:
    """The tables of `Responses` but the loss, with the labels, as text: a compressed .npz file in base64."""

    movement: Movement
    shifts: tuple[tuple[int | float, ...], ...]
    output: str
    tables: str

    @classmethod
    def pack(cls, responses: Responses) -> "PackedResponses":
        """What a model answered, ready to be kept in a report."""
        tables = {name: table for name in PACKED if (table := getattr(responses, name)) is not None}
        arrays: Any = {name: _smallest(table.cpu().numpy()) for name, table in tables.items()}
        file = io.BytesIO()
        np.savez_compressed(file, **arrays)
        text = base64.b64encode(file.getvalue()).decode("ascii")
        return cls(responses.movement, responses.shifts, responses.output, text)

    def unpack(self) -> Responses:
        """The responses, for `teka.audit.compare_responses`; without the loss and the times."""
        try:
            with np.load(
                io.BytesIO(base64.b64decode(self.tables, validate=True)), allow_pickle=False
            ) as file:
                check_unpacked_size(file.zip, "the report")
                tables: dict[str, Any] = {name: torch.from_numpy(file[name]) for name in file.files}
            for name, table in tables.items():
                if name != "evaluated":
                    tables[name] = table.to(
                        torch.float64 if table.is_floating_point() else torch.int64
                    )
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
    return table.astype(
        np.promote_types(np.min_scalar_type(table.min()), np.min_scalar_type(table.max()))
    )


@dataclass(frozen=True, repr=False)
class AuditReport:
    """Everything that an audit found; printed, what a terminal shows of it.

    >>> import torch
    >>> from teka.audit import AuditSettings, audit
    >>> model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 4))
    >>> settings = AuditSettings(shifts=[(0, 1), (1, 0)], parts=(), num_examples=0)
    >>> report = audit(model, torch.rand(20, 3, 8, 8), settings=settings)
    >>> report.number("consistency"), report.verdict[0]
    (1.0, 'With circular wrap, which no camera does, moving the image changes nothing but rounding.')
    """

    name: str  # what to call the model
    model: dict[str, object]  # what it is, its parameters, a hash of its weights
    data: dict[str, object]  # number, shape and classes of the images, a hash
    settings: dict[str, object]
    metrics: tuple[Metrics, ...]  # of each mode, in the order asked for
    phases: dict[str, PhaseTable]  # by mode, in the model's coarsest grid
    noise_floor: NoiseFloor | None
    lie_derivative: tuple[LieDerivative, ...]  # along dy and dx; fewer where it failed
    sensitivity: dict[str, SensitivityMap]  # by mode
    layers: LayerFindings | None
    presets: tuple[PresetResult, ...]
    caveats: tuple[Caveat, ...]
    failures: tuple[Failure, ...]
    examples: tuple[Example, ...]  # images whose answer changes most
    verdict: tuple[str, ...]  # what it comes to, in plain sentences, the first the headline
    provenance: dict[str, object]  # command, date, hardware, versions, seconds
    changes: tuple[
        ChangeResult, ...
    ] = ()  # turned, rotated, scaled and the like; none in reports of older versions
    responses: tuple[
        PackedResponses, ...
    ] = ()  # for each entry of `metrics`; none in reports of older versions

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.name}: {' '.join(self.verdict[:1])}>"

    def __str__(self) -> str:
        from teka.audit.page.text import audit_text

        return audit_text([self])

    @property
    def invalid(self) -> list[str]:
        """The names of the caveats for which all numbers are invalid."""
        return [caveat.name for caveat in self.caveats if caveat.severity == "invalidates"]

    def number(self, metric: str) -> float:
        """Return the lowest value over the modes of one of `metrics.NUMBERS`, for a gate.

        Raises:
            ValueError: The number was not measured in every mode, or the report is invalid. What was measured all the
                same is in `metrics`.
        """
        if self.invalid:
            raise ValueError(
                f"the results of {self.name} are invalid: {', '.join(self.invalid)}; see caveats"
            )
        if missing := [f"{one.part} ({one.message})" for one in self.failures if one.decides]:
            raise ValueError(f"not everything that a gate needs was measured: {', '.join(missing)}")
        known = sorted({key for one in self.metrics for key in one.numbers})
        if not isinstance(metric, str) or metric not in known:
            raise wrong_value(
                "metric", metric, f"one that was measured: {', '.join(known) or 'none was'}"
            )
        return min(one.numbers[metric].value for one in self.metrics if metric in one.numbers)

    def to_dict(self) -> dict[str, object]:
        """Return all fields and the names of the caveats that make the report invalid, ready for JSON."""
        return {"schema": SCHEMA, "invalid": self.invalid, **encode(self)}

    @classmethod
    def from_dict(cls, content: Mapping[str, object]) -> "AuditReport":
        """What `to_dict` wrote, or that of an older version; ValueError for another schema or other fields."""
        if not isinstance(content, Mapping):
            raise wrong_type("content", content, "a dictionary, as to_dict gives it")
        fields = dict(content)
        schema = fields.pop("schema", None)
        if schema not in READ_SCHEMAS:
            expected = (
                f"one of {', '.join(map(str, READ_SCHEMAS))}, which this version of teka reads"
            )
            raise wrong_value("schema of the content", schema, expected)
        fields.pop("invalid", None)  # which follows from the caveats
        if "traps" in fields:  # as caveats were called
            fields["caveats"] = fields.pop("traps")
        try:
            return decode(cls, fields)
        except ValueError as error:
            raise ValueError(f"the content is no audit's report: {error}") from error

    def write(self, path: str | Path) -> Path:
        """Write the report, whole or not at all: a page if the name ends in .html, else JSON, which `read` reads."""
        path = check_path("path", path)
        check_output_file("path", path)
        if path.suffix == ".html":
            from teka.audit.page.pages import write_audit_page

            return write_audit_page([self], path)
        return write_json(path, self.to_dict())

    @classmethod
    def read(cls, path: str | Path) -> "AuditReport":
        """Read a report that `write` wrote; a ValueError names the file that is not there, or is none."""
        found = check_path("path", path)
        try:
            return cls.from_dict(read_json(found))
        except (OSError, ValueError) as error:
            raise ValueError(f"path {found}: {error}") from error


def worst_images(responses: Responses, number: int) -> tuple[int, ...]:
    """Indices of so many images whose answer changes at most shifts, those that are correct unshifted first."""
    if responses.predictions is None:
        return ()
    changed = (
        (responses.predictions != responses.predictions[responses.zero]) & responses.evaluated
    ).sum(dim=0)
    correct = responses.correct
    right = torch.zeros_like(changed) if correct is None else correct[responses.zero].to(changed)
    # One that was correct has something to lose; ties go to the earlier image.
    order = torch.argsort(
        changed + right * (changed > 0) * responses.evaluated.shape[0], descending=True, stable=True
    )
    return tuple(order[:number].tolist())


def encode_levels(image: Float[Tensor, "channels height width"]) -> str:
    """An image's levels (H, W, C) in base64, of C other than 1 or 3 the mean; beyond [0, 1] spread over their range."""
    shown = (image if image.shape[0] in (1, 3) else image.mean(dim=0, keepdim=True)).cpu()
    low, high = (bound.item() for bound in torch.aminmax(shown.double()))
    if low < 0 or high > 1:
        shown = (shown - low) / max(high - low, 1e-12)
    levels = (shown.double() * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous()
    return base64.b64encode(levels.numpy().tobytes()).decode("ascii")


def make_examples(
    function: Callable[[Tensor], object],
    images: Float[Tensor, "images channels height width"],
    responses: Responses,
    indices: Iterable[int],
    settings: AuditSettings,
) -> Iterator[Example]:
    """Some of the images, with a classifier's class and its probability at every shift; none of other outputs."""
    movement, shifts = responses.movement, responses.take_complete().shifts
    for index in (
        indices if responses.output in CLASSIFIERS and responses.output not in MULTILABEL else ()
    ):
        placed = movement.place(images[index : index + 1].to(settings.device))
        answers, shares = [], []
        for start in range(0, len(shifts), settings.batch_size):
            moved = torch.cat(
                [
                    movement.move(placed, shift)
                    for shift in shifts[start : start + settings.batch_size]
                ]
            )
            output = call_model(function, moved, lambda at=index: f"on image {at}, for an example")
            share, answer = predict_with_probability(output.values, responses.output)
            answers += answer.tolist()
            shares += [round(one, 4) for one in share.tolist()]
        label = None if responses.labels is None else int(responses.labels[index])
        (height, width), channels = placed.shape[2:], 3 if placed.shape[1] == 3 else 1
        shown = encode_levels(placed[0]), height, width, channels
        yield Example(movement.mode, index, label, *shown, shifts, tuple(answers), tuple(shares))
