import pytest
import torch
from torch import nn

from teka.audit.audit import audit
from teka.audit.model_call import ModelError, call_model, evaluation_mode, tensor_hash, weights_hash
from teka.audit.settings import AuditSettings
from tests.raising import raises_for

BATCH = torch.arange(2 * 1 * 5 * 7, dtype=torch.float64).reshape(2, 1, 5, 7)


def make_network(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(2, 3)


def call_on_batch(function):
    return call_model(function, BATCH, "at shift (1, 2)").values


def test_evaluation_mode_restores_training_modes():
    module = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout()).eval())
    before = [submodule.training for submodule in module.modules()]

    def fail() -> None:
        with evaluation_mode(module):
            assert not any(submodule.training for submodule in module.modules())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [submodule.training for submodule in module.modules()] == before
    assert True in before
    assert False in before


def test_evaluation_mode_accepts_no_module():
    with evaluation_mode(None):
        pass


def test_call_model_selects_the_logits():
    class Output:
        logits = BATCH.sum((1, 2))

    for output in (Output(), {"loss": 0.5, "logits": Output.logits}):
        assert torch.equal(call_on_batch(lambda _, output=output: output), Output.logits)


def test_model_runs_in_inference_mode():
    assert call_on_batch(
        lambda batch: torch.full((2, 1), float(torch.is_inference_mode_enabled()))
    ).tolist() == [[1], [1]]


def test_error_of_the_model_names_the_shift_and_keeps_the_cause():
    with pytest.raises(
        ModelError, match=r"the model raised RuntimeError at shift \(1, 2\): .*shapes"
    ) as caught:
        call_on_batch(nn.Linear(3, 4).double())
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert isinstance(caught.value, ValueError)


def test_out_of_memory_error_suggests_a_smaller_batch_size():
    def fail(batch):
        raise torch.OutOfMemoryError("no room")

    with pytest.raises(ModelError, match="no room; a smaller batch_size needs less memory"):
        call_on_batch(fail)


def test_invalid_outputs_are_errors():
    for function, message in [
        (
            lambda batch: (batch, batch),
            r"at shift \(1, 2\) is a tuple of '0' \(.*\), '1' \(.*\), expected one tensor",
        ),
        (lambda batch: batch.sum(), r"at shift \(1, 2\) has shape \(\), expected \(2, …\)"),
        (lambda batch: batch[0, 0], r"shape \(5, 7\)"),
        (lambda batch: batch[:1], r"shape \(1, 1, 5, 7\)"),
        (lambda batch: batch[:, :0], r"shape \(2, 0, 5, 7\)"),
    ]:
        with raises_for(message, ModelError, match=message):
            call_on_batch(function)


def test_weights_hash_of_an_uninitialized_lazy_module_is_an_error():
    lazy = nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
    with pytest.raises(ValueError, match=r"1\.weight of the model has no shape yet"):
        weights_hash(lazy)
    lazy(torch.zeros(1, 1, 2, 2))
    assert len(weights_hash(lazy)) == 64


def test_tensor_hash_depends_on_dtype_shape_and_values():
    values = torch.arange(6, dtype=torch.float32)
    assert tensor_hash(values.reshape(2, 3).T.contiguous().T) == tensor_hash(values.reshape(2, 3))
    different = (
        values,
        values.reshape(2, 3),
        values.reshape(3, 2),
        values.int(),
        -values,
        values.bfloat16(),
    )
    assert len({tensor_hash(tensor) for tensor in different}) == len(different)
    assert tensor_hash(torch.empty(0, 3)) != tensor_hash(torch.empty(3, 0))


def test_weights_hash_of_a_method_is_that_of_its_module():
    model = make_network()
    assert weights_hash(model) == weights_hash(model.forward) == weights_hash(make_network())
    assert weights_hash(model) != weights_hash(make_network(1))
    assert weights_hash(torch.sin) == "unknown"


def test_audit_of_a_compiled_model_equals_that_of_the_original():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)).eval()
    settings, images = AuditSettings(shifts=[(0, 1)]), torch.rand(3, 1, 8, 8)
    plain, compiled = (
        audit(module, images, settings=settings)
        for module in (model, torch.compile(model, backend="eager"))
    )
    assert compiled.name == "Sequential"
    assert compiled.model["weights_sha256"] == plain.model["weights_sha256"]
    assert compiled.layers == plain.layers
