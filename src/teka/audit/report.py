"""Reports with all results of an audit, which can be printed and saved as JSON files."""

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from teka.audit.caveats import Caveat
from teka.audit.layers.localize import LayerFindings
from teka.audit.measure.noise import NoiseFloor
from teka.audit.measure.responses import Responses
from teka.audit.model_call import Model, call_model
from teka.audit.model_output import CLASSIFIERS, MULTILABEL, predict_with_probability
from teka.audit.movement import ImageSet, Movement
from teka.audit.protocols import ProtocolResult
from teka.audit.settings import AuditSettings
from teka.audit.shifts import CheckedShifts
from teka.audit.statistics.metrics import Metrics
from teka.checks import check_path
from teka.codec import decode, encode
from teka.errors import escape_unprintable, wrong_type, wrong_value
from teka.files import check_file_is_writable, check_unpacked_size, read_json, write_json

SCHEMA = 4
# Names of the two stages that check whether the results are valid.
VALIDITY = "validity"
NOISE = "noise floor"


@dataclass(frozen=True)
class Failure:
    """Stage of an audit that failed, with its error message.

    Args:
        part: Name of the stage.
        message: Error message.
        traceback: Traceback of the error. Empty if there was no exception.
    """

    part: str
    message: str
    traceback: str = ""


@dataclass(frozen=True)
class ExampleImage:
    """Image that a report shows as an example, with the classifier's prediction at every shift.

    Args:
        mode: Mode in which the image was shifted.
        index: Index of the image in the data.
        label: Class of the image, or None.
        image: Unshifted image, as base64 of its bytes in the order (height, width, channels).
        height: Height in pixels.
        width: Width in pixels.
        channels: 1 or 3.
        shifts: Shifts (dy, dx).
        predictions: Predicted class at each shift.
        probabilities: Probability of the predicted class at each shift.
    """

    mode: str
    index: int
    label: int | None
    image: str
    height: int
    width: int
    channels: int
    shifts: CheckedShifts
    predictions: tuple[int, ...]
    probabilities: tuple[float, ...]


@dataclass(frozen=True)
class PackedResponses:
    """Compressed `Responses` of a model in one mode of shifting, which a JSON report can contain.

    Args:
        movement: How the images were shifted.
        shifts: The shifts.
        output: Kind of the output.
        tables: Tables of the `Responses`, as base64 of a compressed .npz file.
    """

    movement: Movement
    shifts: CheckedShifts
    output: str
    tables: str

    @classmethod
    def pack(cls, responses: Responses) -> "PackedResponses":
        """Compress the errors and predictions of a model."""
        tables = responses.tables()
        if responses.labels is not None:
            tables["labels"] = responses.labels
        arrays: Any = {name: table.cpu().numpy() for name, table in tables.items()}
        file = io.BytesIO()
        np.savez_compressed(file, **arrays)
        text = base64.b64encode(file.getvalue()).decode("ascii")
        return cls(responses.movement, responses.shifts, responses.output, text)

    def unpack(self) -> Responses:
        """Decompress the responses, for example to compare the model with another one.

        Raises:
            ValueError: The compressed data are damaged.
        """
        try:
            content = io.BytesIO(base64.b64decode(self.tables, validate=True))
            with np.load(content, allow_pickle=False) as file:
                check_unpacked_size(file.zip, "the report")
                tables: dict[str, Any] = {name: torch.from_numpy(file[name]) for name in file.files}
            return Responses(self.movement, self.shifts, self.output, **tables)
        except Exception as error:  # the type of the error depends on what is damaged
            raise ValueError(f"the responses of the report are damaged: {error}") from error


@dataclass(frozen=True, repr=False)
class AuditReport:
    """All results of an audit. Print the report to see the verdict and the caveats.

    >>> import torch
    >>> from teka.audit import AuditSettings, audit
    >>> _ = torch.manual_seed(0)
    >>> layers = torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 4)
    >>> model = torch.nn.Sequential(*layers)
    >>> settings = AuditSettings(shifts=[(0, 1), (1, 0)], parts=(), num_examples=0)
    >>> report = audit(model, torch.rand(20, 3, 8, 8), settings=settings)
    >>> report.number("consistency")
    1.0
    >>> report.metrics[0].movement.mode, len(report.metrics[0].shifts)
    ('circular', 3)

    Args:
        name: Name of the model.
        model: Facts about the model, such as its class, number of parameters and weights hash.
        data: Facts about the images, such as their number, shape, classes and hash.
        settings: Settings of the audit.
        metrics: Metrics of each mode.
        noise_floor: Differences between repeated outputs of the model for the same images, or None.
        layers: Layers that break equivariance, or None.
        protocols: Results of published protocols.
        caveats: Reasons why the results could mislead.
        failures: Stages that failed.
        examples: Images whose predictions change at most shifts.
        verdict: Sentences that summarize the results, the most important sentence first.
        provenance: Command, date, hardware, versions, and duration in seconds.
        responses: Errors and predictions from which each entry of `metrics` was computed. Reports
            of older versions have none.

    Raises:
        ValueError: A metric is unknown or invalid, or a file is not an audit report.
    """

    name: str
    model: dict[str, object]
    data: dict[str, object]
    settings: dict[str, object]
    metrics: tuple[Metrics, ...]
    noise_floor: NoiseFloor | None
    layers: LayerFindings | None
    protocols: tuple[ProtocolResult, ...]
    caveats: tuple[Caveat, ...]
    failures: tuple[Failure, ...]
    examples: tuple[ExampleImage, ...]
    verdict: tuple[str, ...]
    provenance: dict[str, object]
    responses: tuple[PackedResponses, ...] = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.name}: {' '.join(self.verdict[:1])}>"

    def __str__(self) -> str:
        lines = [*self.verdict, *(f"{caveat.name}: {caveat.message}" for caveat in self.caveats)]
        lines += [f"{failure.part} not measured: {failure.message}" for failure in self.failures]
        return "\n".join([f"{self.name}:", *(f"  {escape_unprintable(line)}" for line in lines)])

    @property
    def invalid(self) -> list[str]:
        """Names of the caveats that invalidate the results."""
        return [caveat.name for caveat in self.caveats if caveat.severity == "invalidates"]

    @property
    def is_exact(self) -> bool:
        """True if in every mode the model is equivariant or invariant up to rounding errors."""
        return bool(self.metrics) and all(metrics.is_exact for metrics in self.metrics)

    def number(self, metric: str) -> float:
        """Return the value of a metric, for example to compare it with a threshold.

        If the audit used several modes of shifting, return the lowest value in any of them.

        Args:
            metric: Name of the metric in `teka.audit.statistics.metrics.NUMBERS`, such as
                "consistency".

        Raises:
            ValueError: The report is invalid, a mode or a validity check failed, or the metric was
                not measured. The values in the modes that did not fail are in `metrics`.
        """
        if self.invalid:
            raise ValueError(
                f"the results of {self.name} are invalid: {', '.join(self.invalid)}; see caveats"
            )
        failures = [
            f"{failure.part} ({failure.message})"
            for failure in self.failures
            if failure.part.startswith("mode ") or failure.part in (VALIDITY, NOISE)
        ]
        if failures:
            raise ValueError(
                f"the threshold needs every mode, but these failed: {', '.join(failures)}"
            )
        numbers = [metrics.numbers for metrics in self.metrics]
        values = [each[metric].value for each in numbers if metric in each]
        if not values:
            known = ", ".join(sorted(set().union(*numbers))) or "none was"
            raise wrong_value("metric", metric, f"one that was measured: {known}")
        return min(values)

    def to_dict(self) -> dict[str, object]:
        """Convert the report to a dictionary that can be saved as JSON."""
        return {"schema": SCHEMA, "invalid": self.invalid, **encode(self)}

    @classmethod
    def from_dict(cls, content: Mapping[str, object]) -> "AuditReport":
        """Create a report from a dictionary that `to_dict` returned.

        Raises:
            ValueError: The dictionary has a different schema or unknown fields.
        """
        if not isinstance(content, Mapping):
            raise wrong_type("content", content, "a dictionary from to_dict")
        fields = dict(content)
        schema = fields.pop("schema", None)
        if schema != SCHEMA:
            hint = "Another version of teka wrote the report. Repeat the audit."
            raise wrong_value("schema of the content", schema, str(SCHEMA), hint)
        fields.pop("invalid", None)  # follows from the caveats
        try:
            return decode(cls, fields)
        except ValueError as error:
            raise ValueError(f"the content is not the report of an audit: {error}") from error

    def write(self, path: str | Path) -> Path:
        """Write the report to a JSON file, atomically.

        To write an HTML page instead, use `teka.audit.write_page`.

        Raises:
            ValueError: The path cannot be written.
        """
        return write_json(check_file_is_writable("path", path), self.to_dict())

    @classmethod
    def read(cls, path: str | Path) -> "AuditReport":
        """Read a report from a file that `write` created.

        Raises:
            ValueError: The file is missing or is not a report.
        """
        path = check_path("path", path)
        try:
            return cls.from_dict(read_json(path))
        except (OSError, ValueError) as error:
            raise ValueError(f"path {path}: {error}") from error


def find_least_consistent_images(responses: Responses, num_images: int) -> tuple[int, ...]:
    """Return the indices of the images whose predictions change at most shifts.

    Images that are classified correctly without a shift come first. If the model is not a
    classifier, the result is empty.
    """
    if responses.agreement is None:
        return ()
    num_changes = (~responses.agreement & responses.evaluated).sum(dim=0)
    if responses.correct is not None:
        comes_first = responses.correct[responses.zero] & (num_changes > 0)
        num_changes += len(responses.shifts) * comes_first
    return tuple(num_changes.argsort(descending=True, stable=True)[:num_images].tolist())


def encode_image(image: Tensor) -> str:
    """Encode an image (C, H, W) as text for a report: base64 of its bytes in the order (H, W, C).

    If the image has values outside [0, 1], it is first rescaled to [0, 1]. If the number of
    channels is neither 1 nor 3, only their mean is encoded.
    """
    if image.shape[0] not in (1, 3):
        image = image.mean(dim=0, keepdim=True)
    values = image.cpu().double()
    low, high = values.aminmax()
    if low < 0 or high > 1:
        values = (values - low) / (high - low).clamp(min=1e-12)
    levels = (values * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous()
    return base64.b64encode(levels.numpy().tobytes()).decode("ascii")


def create_examples(
    function: Model,
    images: ImageSet,
    responses: Responses,
    indices: Sequence[int],
    settings: AuditSettings,
) -> Iterator[ExampleImage]:
    """Call a classifier on the chosen images at every shift, and yield an `ExampleImage` for each.

    Nothing is yielded if the model does not predict exactly one class for each image.
    """
    if responses.output not in CLASSIFIERS or responses.output in MULTILABEL:
        return
    movement = responses.movement
    shifts = responses.select_complete_shifts().shifts
    prepared = movement.prepare_images(images[list(indices)].to(settings.device))
    height, width = prepared.shape[2:]
    for index, image in zip(indices, prepared, strict=True):
        classes = []
        probabilities = []
        for start in range(0, len(shifts), settings.batch_size):
            batch = shifts[start : start + settings.batch_size]
            moved = torch.cat([movement.move(image[None], shift) for shift in batch])
            output = call_model(function, moved, f"on image {index}, for an example")
            probability, predicted = predict_with_probability(output.values, responses.output)
            classes += predicted.tolist()
            probabilities += [round(share, 4) for share in probability.tolist()]
        yield ExampleImage(
            mode=movement.mode,
            index=index,
            label=None if responses.labels is None else int(responses.labels[index]),
            image=encode_image(image),
            height=height,
            width=width,
            channels=3 if len(image) == 3 else 1,
            shifts=shifts,
            predictions=tuple(classes),
            probabilities=tuple(probabilities),
        )
