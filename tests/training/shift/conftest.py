import json

import numpy as np
import pytest

from teka.training.shift_report import load_report

SHIFTS = range(-3, 4)


def fake_model(name="rotation", *, accuracy=0.98, fall=0.0, seed=0, **further):
    """A model whose accuracy falls by `fall` at the shift −3 of dx, by half of that at the other ends, nowhere else."""
    dx = {str(shift): accuracy for shift in SHIFTS}
    dy = dict(dx)
    dx["-3"] = round(accuracy - fall, 6)
    dx["3"] = dy["-3"] = dy["3"] = round(accuracy - fall / 2, 6)
    model = {
        "name": name,
        "position": "rotation",
        "kernel": "squared_relu",
        "backend": "toeplitz",
        "parameters": 20513,
        "seed": seed,
        "epochs": 7,
        "seconds": 41.3,
        "accuracy_by_shift": {"dx": dx, "dy": dy},
        "worst_shift_accuracy": round(max(0.0, accuracy - fall - 0.01), 6),
    }
    return {**model, **further}


def fake_absolute(**further):
    return fake_model(
        **{"name": "absolute", "position": "absolute", "backend": "linear", "accuracy": 0.971, "fall": 0.748, **further}
    )


def fake_softmax(**further):
    return fake_model(**{"name": "softmax", "kernel": "softmax", "backend": "dense", "accuracy": 0.984, **further})


def fake_content(*models, **further):
    content = {"dataset": "digits", "command": "teka demo --out runs/demo", "teka": "0.1.0", "torch": "2.13.0"}
    return {**content, "models": list(models or (fake_absolute(), fake_model(), fake_softmax())), **further}


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
def content():
    return fake_content


@pytest.fixture
def report_of(tmp_path):
    """Make a report from models and further keys, through the file."""

    def make(*models, **further):
        path = tmp_path / "report.json"
        path.write_text(json.dumps(fake_content(*models, **further)), encoding="utf-8")
        return load_report(path)

    return make


@pytest.fixture
def example_arrays():
    """Five shifts of three images of 7×11 pixels, two models; the first model is wrong once."""
    generator = np.random.default_rng(0)
    labels = np.array([4, 9, 1])
    predictions = np.tile(labels, (2, 5, 1))
    predictions[0, 3, 1] = 6
    return {
        "images": generator.integers(0, 256, (5, 3, 7, 11), dtype=np.uint8),
        "shifts": np.array([(0, -2), (0, 0), (0, 2), (-2, 0), (2, -1)]),
        "labels": labels,
        "model_names": np.array(["absolute", "rotation"]),
        "predictions": predictions,
    }


@pytest.fixture
def run_folder(tmp_path, example_arrays):
    """A finished run's folder."""
    folder = tmp_path / "run"
    folder.mkdir()
    further = {"hardware": "two cores", "date": "2021-02-15", "mode": "canvas"}
    (folder / "report.json").write_text(json.dumps(fake_content(**further)), encoding="utf-8")
    np.savez(folder / "examples.npz", **example_arrays)
    return folder
