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
    Counting,
    Failing,
    assert_same,
    linear,
    present,
)
from tests.raising import raises_for

ZERO, SHIFTS = Movement("zero"), square_shifts(2)
SETTINGS = {"labels": LABELS, "batch_size": 10}


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(IMAGES[0].numel(), 3)).double().eval()


@pytest.mark.parametrize("stopped", [KeyboardInterrupt(), RuntimeError()])
def test_a_measurement_that_was_stopped_goes_on(stopped, tmp_path):
    path = tmp_path / "state.safetensors"
    with pytest.raises((KeyboardInterrupt, ModelError)):
        measure_responses(
            Failing(linear, 5, stopped), IMAGES, SHIFTS, ZERO, checkpoint=path, **SETTINGS
        )
    model = Counting(linear)
    result = measure_responses(model, IMAGES, SHIFTS, ZERO, checkpoint=path, **SETTINGS)
    # 125 entries take 13 calls, 5 of them before; one more call checks that the model is the same.
    assert len(model.sizes) == 1 + 8
    assert_same(result, measure_responses(linear, IMAGES, SHIFTS, ZERO, **SETTINGS))


def test_a_budget_at_a_time_comes_to_the_same_end(tmp_path):
    settings = {**SETTINGS, "checkpoint": tmp_path / "state.safetensors", "budget_seconds": 1e-9}
    # 125 entries, 10 of them at a time.
    results = [measure_responses(linear, IMAGES, SHIFTS, ZERO, **settings) for _ in range(13)]
    assert [int(result.evaluated.sum()) for result in results] == [*range(10, 125, 10), 125]
    assert_same(results[-1], measure_responses(linear, IMAGES, SHIFTS, ZERO, **SETTINGS))


def test_dense_outputs_and_another_batch_size_go_on_too(tmp_path):
    path = tmp_path / "state.safetensors"

    def function(images):
        return images.cumsum(3)

    with pytest.raises(ModelError):
        measure_responses(
            Failing(function, 3, OSError()), IMAGES, SHIFTS, ZERO, checkpoint=path, batch_size=3
        )
    result = measure_responses(function, IMAGES, SHIFTS, ZERO, checkpoint=path, batch_size=50)
    assert_same(result, measure_responses(function, IMAGES, SHIFTS, ZERO))


def test_a_finished_measurement_takes_one_more_call(tmp_path):
    path = tmp_path / "state.safetensors"
    first = measure_responses(linear, IMAGES, SHIFTS, ZERO, checkpoint=path, **SETTINGS)
    model = Counting(linear)
    second = measure_responses(model, IMAGES, SHIFTS, ZERO, checkpoint=path, **SETTINGS)
    assert len(model.sizes) == 1
    assert_same(first, second)


def test_the_state_is_written_while_the_model_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(measure_module, "SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(measure_module, "TIMES_BETWEEN", 0.0)
    path, written = tmp_path / "state.safetensors", []
    measure_responses(
        linear,
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


def test_another_measurement_is_refused(tmp_path):
    for changes, named in [
        ({"images": IMAGES.flip(0)}, "These differ: images"),
        ({"labels": LABELS.flip(0).clone() * 0}, "These differ: labels"),
        ({"labels": None}, "These differ: labels"),
        ({"shifts": square_shifts(1)}, "These differ: shifts"),
        ({"movement": Movement("circular")}, "These differ: movement"),
        ({"output": "features"}, "These differ: output"),
        ({"function": network(1)}, "These differ: weights"),
    ]:
        path = tmp_path / "state.safetensors"
        given = {
            "function": network(),
            "images": IMAGES,
            "shifts": SHIFTS,
            "movement": ZERO,
            "labels": LABELS,
        }
        measure_responses(**given, checkpoint=path)
        before = path.read_bytes()
        with raises_for(named, ValueError, match=named):
            measure_responses(**{**given, **changes}, checkpoint=path)
        assert path.read_bytes() == before, changes


def test_another_function_is_known_by_its_answers(tmp_path):
    path = tmp_path / "state.safetensors"
    measure_responses(linear, IMAGES, SHIFTS, ZERO, checkpoint=path)
    with pytest.raises(
        ValueError, match=r"the state of this model, .*Its outputs .* differ by 0\.01 of their norm"
    ):
        measure_responses(
            lambda images: 1.01 * linear(images), IMAGES, SHIFTS, ZERO, checkpoint=path
        )


def test_a_file_that_is_cut_off_or_no_such_file_is_refused(tmp_path):
    path = tmp_path / "state.safetensors"
    measure_responses(linear, IMAGES, SHIFTS, ZERO, checkpoint=path)
    content = path.read_bytes()
    for wrong in (content[:-100], content[:20], b"", b"{}"):
        path.write_bytes(wrong)
        with raises_for(wrong, ValueError, match="a whole file of a measurement"):
            measure_responses(linear, IMAGES, SHIFTS, ZERO, checkpoint=path)


def test_a_bit_that_has_changed_is_refused(tmp_path):
    path = tmp_path / "state.safetensors"
    measure_responses(linear, IMAGES, SHIFTS, ZERO, checkpoint=path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1  # the last byte of the last tensor
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"The file is damaged"):
        measure_responses(linear, IMAGES, SHIFTS, ZERO, checkpoint=path)


def test_a_path_without_a_folder_or_of_a_folder_is_refused(tmp_path):
    for path in (tmp_path / "missing" / "state", tmp_path):
        with raises_for(path, ValueError, match="a file in a folder that exists"):
            Checkpoint(path, {})


def test_what_is_written_is_read(tmp_path):
    keeper = Checkpoint(tmp_path / "state", {"images": "a"})
    assert keeper.read() is None
    tensors = {"one": torch.arange(3), "two": torch.rand(2, 5)}
    keeper.write(tensors)
    read = present(Checkpoint(tmp_path / "state", {"images": "a"}).read())
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())
    assert not keeper.is_due


def test_the_state_names_what_it_is_of(tmp_path):
    Checkpoint(tmp_path / "state", {"images": "a"}).write({})
    with safe_open(tmp_path / "state", framework="pt") as file:
        assert json.loads(file.metadata()["identity"])["images"] == "a"
