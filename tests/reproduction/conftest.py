import itertools
import json
import sys

import numpy as np
import pytest

from reproduction.__main__ import run as main

STUDY_SHIFTS = [[0, 0], [0, 3], [-3, 0], [5, -2]]
STUDY_ERRORS = {
    "softmax": 0.05,
    "squared relu": 0.045,
    "taylor 2": 0.11,
    "elu + 1": 0.31,
    "constant": 0.72,
}
STUDY_FLOPS = {
    "softmax": 5.1e6,
    "squared relu": 1.3e6,
    "taylor 2": 2.9e6,
    "elu + 1": 1.2e6,
    "constant": 7e5,
}
STUDY_POSITIONS = {
    "rotation": (1.0, 0.0),
    "clipped": (1.3, 0.0),
    "absolute": (1.2, 0.35),
    "none": (2.1, 0.0),
}
STUDY_DATA = {"mnist": 1.0, "fashion-mnist": 2.6, "digits": 0.55, "cifar10": 4.1}


def fake_study_cell(
    data="mnist", kernel="softmax", position="rotation", seed=0, *, labels=None, **further
):
    """A finished cell whose numbers follow from its labels and seed; curves fall towards the final error."""
    factor, fall = STUDY_POSITIONS[position]
    generator = np.random.default_rng([*map(ord, f"{data}{kernel}{position}"), seed])
    error = min(
        0.9,
        STUDY_ERRORS[kernel] * factor * STUDY_DATA[data] * (1 + 0.08 * generator.standard_normal()),
    )
    accuracy = round(1 - error, 4)
    seconds = round(STUDY_FLOPS[kernel] * 6e-6 * (1 + 0.02 * generator.standard_normal()), 3)
    shares = [point / 8 for point in range(1, 9)]
    curve = [
        {
            "step": round(625 * share),
            "process_seconds": round(seconds * share, 4),
            "accuracy": round(1 - error - (0.9 - error) * (1 - share) ** 2, 4),
            "loss": round(3 * error + 2 * (1 - share), 4),
        }
        for share in shares
    ]
    shifted = [
        round(max(0.05, accuracy - fall * index / 3), 4) for index in range(len(STUDY_SHIFTS))
    ]
    measured = {
        "labels": labels or {"data": data, "kernel": kernel, "position": position},
        "seed": seed,
        "run": {
            "data": data,
            "kernel": kernel,
            "learning_rate": 2e-3,
            "batch_size": 64,
            "seed": seed,
        },
        "parameters": 21001,
        "backend": "dense" if kernel == "softmax" else "toeplitz",
        "forward_flops": STUDY_FLOPS[kernel],
        "training_flops": 3 * STUDY_FLOPS[kernel],
        "steps": 625,
        "seconds": seconds + 1,
        "process_seconds": seconds,
        "learning_curve": curve,
        "test_images": 2000,
        "accuracy": accuracy,
        "shifts": STUDY_SHIFTS,
        "shifted_images": 500,
        "accuracy_by_shift": shifted,
        "minimum_accuracy": min(shifted),
        "worst_shift_accuracy": max(0.0, round(min(shifted) - 0.013, 4)),
        "equivariance_error": 0.31 if fall else 3.1e-7,
        "noise_floor": 2.3e-7,
        "command": "python -m reproduction study study.yaml",
        "teka": "0.1.0",
        "torch": "2.13.0",
        "hardware": "two cores",
        "date": "2021-02-15T09:30:00",
    }
    return {**measured, **further}


def fake_failed_cell(*levels, **further):
    """A cell whose loss diverged."""
    cell = fake_study_cell(*levels, **further)
    kept = ("labels", "seed", "run", "command", "teka", "torch", "hardware", "date")
    return {**{key: cell[key] for key in kept}, "failed": "the loss is nan at step 17"}


@pytest.fixture
def study_cell():
    return fake_study_cell


@pytest.fixture
def failed_cell():
    return fake_failed_cell


@pytest.fixture
def study_folder(tmp_path):
    """Write cells into a study's folder."""

    def make(*cells):
        folder = tmp_path / "study"
        (folder / "cells").mkdir(parents=True)
        for index, cell in enumerate(cells):
            (folder / "cells" / f"{index:03}.json").write_text(json.dumps(cell), encoding="utf-8")
        return folder

    return make


@pytest.fixture
def study_of(study_folder):
    """Make a study's results from cells, through the files."""
    from reproduction.study.report.results import read_study_results

    return lambda *cells, **further: read_study_results(study_folder(*cells), **further)


def fake_study_cells(
    data=("mnist", "fashion-mnist"), kernels=tuple(STUDY_ERRORS), positions=("rotation", "none")
):
    """Every cell of a study with three seeds."""
    places = itertools.product(data, kernels, positions)
    return [fake_study_cell(*levels, seed=seed) for levels in places for seed in range(3)]


@pytest.fixture
def study_cells():
    return fake_study_cells


@pytest.fixture
def fails(capsys):
    """Run a command that must fail; returns its one line of error."""

    def run(*arguments: str) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            sys.exit(main([str(argument) for argument in arguments]))
        assert stopped.value.code == 2
        error = capsys.readouterr().err
        assert error.endswith("\n")
        assert error.count("\n") == 1, error
        return error

    return run
