from typing import Any

import pytest
import torch

from teka.experiments.bench.layers import LAYERS
from teka.experiments.bench.settings import Settings

GOOD: dict[str, Any] = {
    "lengths": (9, 4),
    "direction": "forward_backward",
    "dim": 8,
    "heads": 2,
    "batch": 1,
    "repeats": 1,
    "warmup": 0,
    "threads": 1,
    "layers": None,
    "device": "cpu",
    "max_bytes": 1e9,
    "max_seconds": 20.0,
    "budget_seconds": 900.0,
}


def test_lengths_are_sorted_and_no_choice_is_all_layers():
    settings = Settings(**GOOD)
    assert settings.lengths == (4, 9)
    assert settings.chosen_layers() == LAYERS


def test_a_name_stands_for_all_its_backends_and_the_yardstick_is_always_there():
    settings = Settings(**{**GOOD, "layers": ["squared_relu-rotation"]})
    chosen = [(layer.name, layer.backend) for layer in settings.chosen_layers()]
    expected = [("squared_relu-rotation", "toeplitz"), ("squared_relu-rotation", "dense")]
    assert chosen == [("four_gemms", "torch"), *expected]


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("lengths", (), "lengths is"),
        ("lengths", (4, 0), "lengths is"),
        ("lengths", (4, 4), "different numbers of tokens"),
        ("lengths", 16, "lengths is 16"),
        ("lengths", (2.5,), "whole number"),
        ("lengths", (4, 1000), "lengths is 1000, expected the cells of a square grid: 961 or 1024"),
        ("direction", "backward", "expected one of 'forward', 'forward_backward'"),
        ("dim", 0, "dim is 0"),
        ("heads", 1, "heads is 1, expected a whole number of at least 2"),
        ("heads", 3, "a divisor of dim = 8"),
        ("batch", 0, "batch is 0"),
        ("batch", True, "batch is True"),
        ("repeats", 0, "repeats is 0"),
        ("warmup", -1, "warmup is -1"),
        ("threads", 0, "threads is 0"),
        ("threads", 1.5, "threads is 1.5"),
        ("layers", (), "layers is"),
        ("layers", "softmax", "list of names"),
        ("layers", ("softmx",), "did you mean 'softmax'"),
        ("device", "gpu", "device is 'gpu'"),
        ("max_bytes", 0.0, "max_bytes is 0.0"),
        ("max_bytes", float("nan"), "max_bytes is nan"),
        ("max_seconds", -1.0, "max_seconds is -1.0, expected a positive number of seconds"),
        ("budget_seconds", 0.0, "budget_seconds is 0.0"),
    ],
)
@pytest.mark.usefixtures("as_users_run_it")
def test_a_wrong_setting_is_an_error_that_names_it(argument: str, value: object, message: str):
    with pytest.raises(ValueError, match=message):
        Settings(**{**GOOD, argument: value})


def test_a_gpu_that_is_not_there_is_an_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="torch finds no GPU"):
        Settings(**{**GOOD, "device": "cuda"})
