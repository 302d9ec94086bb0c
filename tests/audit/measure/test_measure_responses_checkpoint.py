import json

import pytest
import torch
from safetensors import safe_open
from torch import nn

from teka.audit import square_shifts
from teka.audit.measure import measure_responses as measure_module
from teka.audit.measure.measure_responses import Checkpoint, measure_responses
from teka.audit.model_call import ModelError
from teka.audit.movement import Movement
from tests.audit.measure.models import (
    IMAGES,
    LABELS,
    CountingModel,
    FailingModel,
    assert_same_responses,
    linear_logits,
    not_none,
)
from tests.raising import raises_for

ZERO, SHIFTS = Movement("zero"), square_shifts(2)
SETTINGS = {"labels": LABELS, "batch_size": 10}


def make_network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(IMAGES[0].numel(), 3)).double().eval()


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), RuntimeError()])
def test_interrupted_measurement_resumes(interruption, tmp_path):
    path = tmp_path / "state.safetensors"
    with pytest.raises((KeyboardInterrupt, ModelError)):
        measure_responses(
            FailingModel(linear_logits, 5, interruption),
            IMAGES,
            SHIFTS,
            ZERO,
            checkpoint=path,
            **SETTINGS,
        )
    model = CountingModel(linear_logits)
    result = measure_responses(model, IMAGES, SHIFTS, ZERO, checkpoint=path, **SETTINGS)
    # Of 13 calls for 125 evaluations, 5 were made before. One more call checks that the model is the same.
    assert len(model.sizes) == 1 + 8
    assert_same_responses(
        result, measure_responses(linear_logits, IMAGES, SHIFTS, ZERO, **SETTINGS)
    )


def test_repeated_budgets_complete_the_measurement(tmp_path):
    settings = {**SETTINGS, "checkpoint": tmp_path / "state.safetensors", "budget_seconds": 1e-9}
    # Each run evaluates one batch of 10 of the 125 combinations of image and shift.
    results = [
        measure_responses(linear_logits, IMAGES, SHIFTS, ZERO, **settings) for _ in range(13)
    ]
    assert [int(result.evaluated.sum()) for result in results] == [*range(10, 125, 10), 125]
    assert_same_responses(
        results[-1], measure_responses(linear_logits, IMAGES, SHIFTS, ZERO, **SETTINGS)
    )


def test_dense_measurement_resumes_with_another_batch_size(tmp_path):
    path = tmp_path / "state.safetensors"

    def function(images):
        return images.cumsum(3)

    with pytest.raises(ModelError):
        measure_responses(
            FailingModel(function, 3, OSError()),
            IMAGES,
            SHIFTS,
            ZERO,
            checkpoint=path,
            batch_size=3,
        )
    result = measure_responses(function, IMAGES, SHIFTS, ZERO, checkpoint=path, batch_size=50)
    assert_same_responses(result, measure_responses(function, IMAGES, SHIFTS, ZERO))


def test_complete_measurement_calls_the_model_once_to_verify_it(tmp_path):
    path = tmp_path / "state.safetensors"
    first = measure_responses(linear_logits, IMAGES, SHIFTS, ZERO, checkpoint=path, **SETTINGS)
    model = CountingModel(linear_logits)
    second = measure_responses(model, IMAGES, SHIFTS, ZERO, checkpoint=path, **SETTINGS)
    assert len(model.sizes) == 1
    assert_same_responses(first, second)


def test_checkpoint_is_written_during_the_measurement(tmp_path, monkeypatch):
    monkeypatch.setattr(measure_module, "SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(measure_module, "TIMES_BETWEEN", 0.0)
    path, written = tmp_path / "state.safetensors", []
    measure_responses(
        linear_logits,
        IMAGES,
        SHIFTS,
        ZERO,
        checkpoint=path,
        progress=lambda done, total, left: written.append(path.exists()),
        **SETTINGS,
    )
    assert written == [False] + [True] * 12
    with safe_open(path, framework="pt") as file:
        assert file.get_tensor("evaluated").all()
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_checkpoint_of_another_measurement_is_an_error(tmp_path):
    for changes, message in [
        ({"images": IMAGES.flip(0)}, "These differ: images"),
        ({"labels": LABELS.flip(0).clone() * 0}, "These differ: labels"),
        ({"labels": None}, "These differ: labels"),
        ({"shifts": square_shifts(1)}, "These differ: shifts"),
        ({"movement": Movement("circular")}, "These differ: movement"),
        ({"output": "features"}, "These differ: output"),
        ({"function": make_network(1)}, "These differ: weights"),
    ]:
        path = tmp_path / "state.safetensors"
        arguments = {
            "function": make_network(),
            "images": IMAGES,
            "shifts": SHIFTS,
            "movement": ZERO,
            "labels": LABELS,
        }
        measure_responses(**arguments, checkpoint=path)
        before = path.read_bytes()
        with raises_for(message, ValueError, match=message):
            measure_responses(**{**arguments, **changes}, checkpoint=path)
        assert path.read_bytes() == before, changes


def test_checkpoint_of_a_function_with_other_outputs_is_an_error(tmp_path):
    path = tmp_path / "state.safetensors"
    measure_responses(linear_logits, IMAGES, SHIFTS, ZERO, checkpoint=path)
    with pytest.raises(
        ValueError, match=r"the state of this model, .*Its outputs .* differ by 0\.01 of their norm"
    ):
        measure_responses(
            lambda images: 1.01 * linear_logits(images), IMAGES, SHIFTS, ZERO, checkpoint=path
        )


def test_truncated_or_invalid_checkpoint_is_an_error(tmp_path):
    path = tmp_path / "state.safetensors"
    measure_responses(linear_logits, IMAGES, SHIFTS, ZERO, checkpoint=path)
    content = path.read_bytes()
    for wrong_content in (content[:-100], content[:20], b"", b"{}"):
        path.write_bytes(wrong_content)
        with raises_for(wrong_content, ValueError, match="a whole file of a measurement"):
            measure_responses(linear_logits, IMAGES, SHIFTS, ZERO, checkpoint=path)


def test_checkpoint_with_a_changed_bit_is_an_error(tmp_path):
    path = tmp_path / "state.safetensors"
    measure_responses(linear_logits, IMAGES, SHIFTS, ZERO, checkpoint=path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1  # the last byte of the last tensor
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"The file is damaged"):
        measure_responses(linear_logits, IMAGES, SHIFTS, ZERO, checkpoint=path)


def test_checkpoint_path_must_be_a_file_that_can_be_written(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "state", tmp_path):
        with raises_for(path, ValueError, match="a file that can be written"):
            Checkpoint(path, {})


def test_folder_of_a_checkpoint_is_created_with_its_first_results(tmp_path):
    path = tmp_path / "new" / "state"
    with pytest.raises(ModelError):
        measure_responses(
            FailingModel(linear_logits, 0, OSError()), IMAGES, SHIFTS, ZERO, checkpoint=path
        )
    assert list(tmp_path.iterdir()) == []
    measure_responses(linear_logits, IMAGES, SHIFTS, ZERO, checkpoint=path)
    assert path.is_file()


def test_checkpoint_read_inverts_write(tmp_path):
    checkpoint_file = Checkpoint(tmp_path / "state", {"images": "a"})
    assert checkpoint_file.read() is None
    tensors = {"one": torch.arange(3), "two": torch.rand(2, 5)}
    checkpoint_file.write(tensors)
    read = not_none(Checkpoint(tmp_path / "state", {"images": "a"}).read())
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())
    assert not checkpoint_file.is_due


def test_checkpoint_metadata_contain_the_identity(tmp_path):
    Checkpoint(tmp_path / "state", {"images": "a"}).write({})
    with safe_open(tmp_path / "state", framework="pt") as file:
        assert json.loads(file.metadata()["identity"])["images"] == "a"
