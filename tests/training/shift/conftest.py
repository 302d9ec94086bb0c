import pytest
import torch

from teka.codec import decode
from teka.training.shift.page import Examples
from teka.training.shift.report import ShiftReport

SHIFTS = range(-3, 4)


def fake_model(name="rotation", *, accuracy=0.98, fall=0.0, seed=0, **further):
    """A model whose accuracy falls by `fall` at the shift −3 of dx, by half of that at the other ends, nowhere else."""
    dx = {str(shift): accuracy for shift in SHIFTS}
    dy = dict(dx)
    dx["-3"] = round(accuracy - fall, 6)
    dx["3"] = dy["-3"] = dy["3"] = round(accuracy - fall / 2, 6)
    accuracy_by_shift = further.pop("accuracy_by_shift", {"dx": dx, "dy": dy})
    intervals = {
        axis: {shift: [0.0, 1.0] for shift in along} for axis, along in accuracy_by_shift.items()
    }
    model = {
        "name": name,
        "position": "rotation",
        "kernel": "squared_relu",
        "backend": "toeplitz",
        "parameters": 20513,
        "seed": seed,
        "epochs": 7,
        "seconds": 41.3,
        "accuracy_by_shift": accuracy_by_shift,
        "interval_by_shift": intervals,
        "minimum_accuracy": min(
            value for along in accuracy_by_shift.values() for value in along.values()
        ),
        "test_images": 360,
        "worst_shift_accuracy": round(max(0.0, accuracy - fall - 0.01), 6),
    }
    return {**model, **further}


def fake_absolute(**further):
    return fake_model(
        **{
            "name": "absolute",
            "position": "absolute",
            "backend": "linear",
            "accuracy": 0.971,
            "fall": 0.748,
            **further,
        }
    )


def fake_softmax(**further):
    return fake_model(
        **{"name": "softmax", "kernel": "softmax", "backend": "dense", "accuracy": 0.984, **further}
    )


def fake_content(*models, **further):
    content = {
        "dataset": "digits",
        "command": "teka demo --out runs/demo",
        "teka": "0.1.0",
        "torch": "2.13.0",
    }
    content |= {"hardware": "two cores", "date": "2021-02-15", "mode": "canvas", "selection": "all"}
    return {
        **content,
        "models": list(models or (fake_absolute(), fake_model(), fake_softmax())),
        **further,
    }


@pytest.fixture
def model():
    return fake_model


@pytest.fixture
def absolute():
    return fake_absolute


@pytest.fixture
def softmax():
    return fake_softmax


@pytest.fixture
def report_of():
    """Make a report from models and further keys."""

    def make(*models, **further):
        return decode(ShiftReport, fake_content(*models, **further))

    return make


@pytest.fixture
def examples():
    """Five shifts of three images of 7×11 pixels, two models; the first model is wrong once."""
    labels = [4, 9, 1]
    predictions = {"absolute": [list(labels) for _ in range(5)], "rotation": [labels] * 5}
    predictions["absolute"][3][1] = 6
    images = torch.randint(
        0, 256, (5, 3, 7, 11), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    return Examples(images, [(0, -2), (0, 0), (0, 2), (-2, 0), (2, -1)], labels, predictions)
