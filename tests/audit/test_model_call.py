import pytest
import torch
from torch import nn

from teka.audit.audit import audit
from teka.audit.model_call import ModelError, call_model, evaluation_mode, tensor_hash, weights_hash
from teka.audit.settings import AuditSettings
from tests.raising import raises_for

BATCH = torch.arange(2 * 1 * 5 * 7, dtype=torch.float64).reshape(2, 1, 5, 7)


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(2, 3)


def call(function):
    return call_model(function, BATCH, "at shift (1, 2)").values


def test_a_module_is_in_evaluation_within_the_context_and_as_it_was_after_it():
    module = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout()).eval())
    before = [part.training for part in module.modules()]

    def fail() -> None:
        with evaluation_mode(module):
            assert not any(part.training for part in module.modules())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [part.training for part in module.modules()] == before
    assert True in before
    assert False in before


def test_no_module_is_no_context():
    with evaluation_mode(None):
        pass


def test_the_logits_of_what_has_some_are_taken_out_of_it():
    class Answer:
        logits = BATCH.sum((1, 2))

    for answer in (Answer(), {"loss": 0.5, "logits": Answer.logits}):
        assert torch.equal(call(lambda _, answer=answer: answer), Answer.logits)


def test_the_model_runs_in_inference_mode():
    assert call(
        lambda batch: torch.full((2, 1), float(torch.is_inference_mode_enabled()))
    ).tolist() == [[1], [1]]


def test_what_a_model_raises_is_the_cause_of_an_error_that_says_where():
    with pytest.raises(
        ModelError, match=r"the model raised RuntimeError at shift \(1, 2\): .*shapes"
    ) as caught:
        call(nn.Linear(3, 4).double())
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert isinstance(caught.value, ValueError)


def test_the_error_of_too_little_memory_gives_a_hint():
    def fail(batch):
        raise torch.OutOfMemoryError("no room")

    with pytest.raises(ModelError, match="no room; a smaller batch_size needs less memory"):
        call(fail)


def test_what_is_no_output_is_refused():
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
            call(function)


def test_a_lazy_module_has_no_weights_before_its_first_image():
    lazy = nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
    with pytest.raises(ValueError, match=r"1\.weight of the model has no shape yet"):
        weights_hash(lazy)
    lazy(torch.zeros(1, 1, 2, 2))
    assert len(weights_hash(lazy)) == 64


def test_the_hash_of_a_tensor_is_that_of_its_dtype_shape_and_values():
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
    assert len({tensor_hash(one) for one in different}) == len(different)
    assert tensor_hash(torch.empty(0, 3)) != tensor_hash(torch.empty(3, 0))


def test_the_hash_of_weights_is_that_of_the_module_or_of_its_method():
    model = network()
    assert weights_hash(model) == weights_hash(model.forward) == weights_hash(network())
    assert weights_hash(model) != weights_hash(network(1))
    assert weights_hash(torch.sin) == "unknown"


def test_a_compiled_model_is_audited_as_the_one_it_was_made_from():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)).eval()
    settings, images = AuditSettings(shifts=[(0, 1)]), torch.rand(3, 1, 8, 8)
    plain, compiled = (
        audit(one, images, settings=settings)
        for one in (model, torch.compile(model, backend="eager"))
    )
    assert compiled.name == "Sequential"
    assert compiled.model["weights_sha256"] == plain.model["weights_sha256"]
    assert compiled.layers == plain.layers
