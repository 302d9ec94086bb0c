"""Audit reports with known metrics of a patch model, whose accuracy falls with the shift."""

import base64
import itertools

import numpy as np

from teka.audit.caveats import Caveat
from teka.audit.layers.localize import LayerBreak, LayerFinding, LayerFindings
from teka.audit.measure.noise import NoiseFloor
from teka.audit.movement import Movement
from teka.audit.report import AuditReport, ExampleImage, Failure
from teka.audit.statistics.intervals import Curve, Estimate
from teka.audit.statistics.metrics import Metrics

LARGEST = 4
SQUARE = tuple(itertools.product(range(-LARGEST, LARGEST + 1), repeat=2))
CROSS = tuple(shift for shift in SQUARE if 0 in shift)
HEIGHT, WIDTH = 11, 7


def example_pixels(index=0, channels=1, height=HEIGHT, width=WIDTH):
    """Return levels (H, W, C) without equal rows or columns."""
    return np.random.default_rng(index).integers(0, 256, (height, width, channels), dtype=np.uint8)


def example_prediction(index, shift):
    """Return the predicted class and its probability, correct where both steps are multiples of 4."""
    down, right = shift
    off = (down % 4 != 0) + (right % 4 != 0)
    return (index + off) % 10, round(0.9 - 0.2 * off - 0.01 * abs(down) - 0.001 * abs(right), 3)


def make_example(
    index=0, mode="circular", shifts=SQUARE, *, channels=1, label=None, height=HEIGHT, width=WIDTH
):
    answers = [example_prediction(index, shift) for shift in shifts]
    levels = base64.b64encode(example_pixels(index, channels, height, width).tobytes()).decode(
        "ascii"
    )
    return ExampleImage(
        mode=mode,
        index=index,
        label=index % 10 if label is None else label,
        image=levels,
        height=height,
        width=width,
        channels=channels,
        shifts=tuple(map(tuple, shifts)),
        predictions=tuple(answer for answer, _ in answers),
        probabilities=tuple(probability for _, probability in answers),
    )


def make_curve(values, spread=0.02, *, is_share=True):
    def moved(by):
        ends = [value + by for value in values]
        return (
            tuple(min(max(end, 0.0), 1.0) for end in ends)
            if is_share
            else tuple(max(end, 0.0) for end in ends)
        )

    return Curve(
        tuple(values),
        moved(-spread),
        moved(spread),
        moved(-2 * spread),
        moved(2 * spread),
        "bootstrap over images",
    )


def make_metrics(movement=None, shifts=SQUARE, *, fall=0.5, skipped=(), output="logits"):
    """Return the metrics of a mode whose accuracy falls by `fall` at shifts off the multiples of 4."""
    movement = movement or Movement("circular")

    def accuracy_loss(shift):
        off = sum(step % 4 != 0 for step in shift) / 2
        return fall * (0.8 * off + 0.2 * min(1.0, sum(map(abs, shift)) / (2 * LARGEST)))

    error = make_curve(
        [1.5 * accuracy_loss(shift) + 1e-7 * any(shift) for shift in shifts], is_share=False
    )
    if output != "logits":
        method = "bootstrap over images"
        numbers = {
            "mean_error": Estimate(0.31, 0.28, 0.34, 0.95, method),
            "maximum_error": Estimate(0.71, 0.62, 0.8, 0.95, method),
        }
        return Metrics(
            movement, output, 60, tuple(shifts), tuple(skipped), {"error": error}, numbers, 0.95
        )
    accuracy = [0.97 - accuracy_loss(shift) for shift in shifts]
    agreement = [1 - accuracy_loss(shift) for shift in shifts]
    consistency = sum(agreement) / len(agreement)
    known = {
        "accuracy": 0.97,
        "minimum_accuracy": min(accuracy),
        "worst_shift_accuracy": max(0.0, min(accuracy) - 0.1),
        "consistency": consistency,
        "mean_error": 0.3 * fall + 1e-7,
        "maximum_error": max(error.values),
    }
    numbers = {
        name: Estimate(value, max(0.0, value - 0.02), min(1.0, value + 0.015), 0.95, "wilson")
        for name, value in known.items()
    }
    curves = {"accuracy": make_curve(accuracy), "agreement": make_curve(agreement), "error": error}
    return Metrics(movement, "logits", 60, tuple(shifts), tuple(skipped), curves, numbers, 0.95)


def make_layers():
    """Return findings for a strided patch embedding, absolute positions and one block."""

    def layer(name, kind, interior, border, aliasing, added, grid=(3, 2)):
        return LayerFinding(
            name,
            kind,
            "map",
            grid,
            (4.0, 4.0),
            0,
            interior,
            border,
            aliasing,
            2e-8,
            added,
            error=interior,
        )

    return LayerFindings(
        findings=(
            layer("embed", "Conv2d", 1e-7, 0.03, 0.4, 0.0),
            layer("add_position", "AbsolutePosition", 0.6, 0.65, 0.7, 0.6),
            layer("blocks.0.attention.output.dense", "Linear", 0.7, 0.72, 0.75, 0.1),
            layer("head", "Linear", None, None, 0.5, None, grid=()),
        ),
        threshold=1e-3,
        absolute_embeddings=("add_position.position",),
        skipped={"dropout": "its output is no tensor"},
        breaks={
            "interior": LayerBreak("interior", "add_position", "AbsolutePosition", 0.6, 1e-3),
            "aliasing": LayerBreak("aliasing", "embed", "Conv2d", 0.4, 1e-3),
        },
        num_images=16,
        movement=Movement("circular"),
    )


def make_report(name="patch model", **further):
    """Return the report of a model in one mode, with a value in every field."""
    metrics = further.pop("metrics", (make_metrics(),))
    square = metrics[0].shifts if metrics else SQUARE
    fields = {
        "name": name,
        "model": {
            "kind": "module",
            "parameters": 20513,
            "weights_sha256": "5f" * 32,
            "input_size": [HEIGHT, WIDTH],
        },
        "data": {
            "name": "digits, test part",
            "num_images": 60,
            "sha256": "a0" * 32,
            "class_names": None,
        },
        "settings": {
            "modes": ["circular"],
            "shifts": [list(shift) for shift in square],
            "seed": 0,
            "confidence": 0.95,
        },
        "metrics": metrics,
        "noise_floor": NoiseFloor(0.0, 3.1e-7),
        "layers": make_layers(),
        "protocols": (),
        "caveats": (
            Caveat("phases unseen", "note", "No shift has phase 3."),
            Caveat(
                "few images",
                "limits",
                "60 images give intervals of ± 5 points; 400 would halve them.",
            ),
        ),
        "failures": (Failure("protocol zhang2019", "the images are too small"),),
        "examples": tuple(make_example(index) for index in (3, 1)),
        "verdict": (
            "The answer changes with position: 97.0 % right unmoved, 52.0 % at the worst shift.",
            "It keeps its answers at shifts that are multiples of 4.",
            "add_position adds absolute positions.",
        ),
        "provenance": {
            "command": "teka audit runs/patch --data digits",
            "teka": "0.1.0",
            "torch": "2.13.0",
            "date": "2021-02-15",
            "seconds": 12.5,
        },
    }
    return AuditReport(**{**fields, **further})
