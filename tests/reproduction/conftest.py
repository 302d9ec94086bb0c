import pytest

from reproduction.__main__ import run_command
from reproduction.study import Study
from reproduction.study.results import save_model_results


def saved_result(accuracy=0.9, *, steps=100, process_seconds=10.0, **fields):
    """Return the saved result of a model whose learning curve rises linearly to its accuracy."""
    curve = [
        {
            "step": round(share * steps),
            "process_seconds": share * process_seconds,
            "accuracy": share * accuracy,
            "loss": 1.0 - share,
        }
        for share in (0.5, 1.0)
    ]
    content = {
        "run": {"batch_size": 64, "image_size": 16},
        "threads": 1,
        "command": "python -m reproduction study study.yaml",
        "teka": "0.1.0",
        "torch": "2.13.0",
        "hardware": "two cores",
        "date": "2021-02-15",
        "parameters": 21001,
        "forward_flops": 5.1e6,
        "steps": steps,
        "seconds": process_seconds + 1,
        "process_seconds": process_seconds,
        "learning_curve": curve,
        "test_images": 2000,
        "accuracy": accuracy,
        "mode": "circular",
        "shifts": [[0, 0], [0, -1], [0, 1]],
        "shifted_images": 500,
        "accuracy_by_shift": [accuracy, accuracy - 0.1, accuracy - 0.2],
        "minimum_accuracy": accuracy - 0.2,
        "worst_shift_accuracy": accuracy - 0.25,
        "equivariance_error": 0.31,
        "noise_floor": 2.3e-7,
    }
    return content | fields


def failed_result():
    """Return the saved result of a model whose loss diverged."""
    names = ("run", "threads", "command", "teka", "torch", "hardware", "date")
    return {name: saved_result()[name] for name in names} | {"failed": "the loss is nan at step 17"}


@pytest.fixture
def save_study(tmp_path):
    """Save results of a study, and return the study and its folder.

    The results are given by their levels and seed.
    """

    def save(results, **fields):
        names = fields.pop("names", ("data", "kernel"))
        factors = {
            name: {levels[index]: {} for levels in results} for index, name in enumerate(names)
        }
        seeds = tuple(sorted({levels[-1] for levels in results}))
        study = Study("fake", factors, seeds=seeds, **fields)
        folder = tmp_path / "study"
        for study_model in study.models():
            content = results.get((*study_model.labels.values(), study_model.run.seed))
            if content is not None:
                saved = {"labels": study_model.labels, "seed": study_model.run.seed, **content}
                save_model_results(folder / "cells.jsonl.gz", study_model.name, saved)
        return study, folder

    return save


@pytest.fixture
def command_line():
    """Return the function that runs a command of teka or of the reproductions."""
    return run_command
