from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from teka.models import CausalLM

NUM_TOKENS = 11


def make_model(**options: Any) -> CausalLM:
    torch.manual_seed(0)
    options = {"dim": 12, "depth": 2, "heads": 3, **options}
    return CausalLM(NUM_TOKENS, **options).double().eval()


def draw_tokens(length: int = 9) -> Tensor:
    return torch.randint(NUM_TOKENS, (2, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "options",
    [{}, {"kernel": "elu", "relative": "decay"}, {"relative": None}, {"relative": "fourier"}],
)
def test_steps_give_the_logits_of_the_whole_sequence(options: dict[str, Any]):
    model = make_model(**options)
    tokens = draw_tokens()
    expected = model(tokens)
    state = None
    for index in range(tokens.shape[1]):
        logits, state = model.step(tokens[:, index], state)
        assert (logits - expected[:, index]).abs().max() < 1e-12


@pytest.mark.parametrize("options", [{}, {"kernel": "elu", "relative": "decay"}])
def test_prompt_is_processed_in_one_step(options: dict[str, Any]):
    model = make_model(**options)
    tokens = draw_tokens()
    expected = model(tokens)
    prompt_logits, state = model.step(tokens[:, :6])
    assert (prompt_logits - expected[:, :6]).abs().max() < 1e-12
    rest_logits, state = model.step(tokens[:, 6:8], state)
    assert (rest_logits - expected[:, 6:8]).abs().max() < 1e-12
    logits, _ = model.step(tokens[:, 8], state)
    assert (logits - expected[:, 8]).abs().max() < 1e-12


def test_logits_do_not_depend_on_later_tokens():
    model = make_model()
    tokens = draw_tokens()
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % NUM_TOKENS
    assert (model(changed)[:, :5] - model(tokens)[:, :5]).abs().max() < 1e-12
    assert (model(changed)[:, 5:] - model(tokens)[:, 5:]).abs().max() > 1e-6


def test_generation_at_temperature_0_takes_the_most_likely_token():
    model = make_model()
    prompt = draw_tokens(4)
    sequence = model.generate(prompt, 6, temperature=0.0)
    assert sequence.shape == (2, 10)
    assert torch.equal(sequence[:, :4], prompt)
    assert torch.equal(sequence[:, 4:], model(sequence[:, :-1]).argmax(2)[:, 3:])
    assert torch.equal(sequence, model.generate(prompt, 6, temperature=0.0))


def test_sampling_depends_only_on_the_generator():
    model = make_model()
    prompt = draw_tokens(2)
    first, second = (
        model.generate(prompt, 20, temperature=5.0, generator=torch.Generator().manual_seed(3))
        for _ in range(2)
    )
    assert torch.equal(first, second)
    other = model.generate(prompt, 20, temperature=5.0, generator=torch.Generator().manual_seed(4))
    assert not torch.equal(first, other)


def test_a_low_temperature_takes_the_most_likely_token_in_float16():
    model = make_model().half()
    prompt = draw_tokens(4)
    assert (model(prompt) / 1e-6).isinf().any()
    sequence = model.generate(prompt, 6, temperature=1e-6)
    assert torch.equal(sequence, model.generate(prompt, 6, temperature=0.0))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_tokens_may_have_any_integer_dtype(dtype: torch.dtype):
    model = make_model()
    tokens = draw_tokens()
    small_tokens = tokens.to(dtype)
    assert torch.equal(model(small_tokens), model(tokens))
    assert torch.equal(model.step(small_tokens)[0], model.step(tokens)[0])


def test_the_size_of_the_state_is_constant():
    model = make_model()
    sizes = set()
    state = None
    for token in draw_tokens(40).unbind(1):
        _, state = model.step(token, state)
        leaves = tree_leaves([[vars(head_state) for head_state in states] for states in state])
        sizes.add(sum(leaf.numel() for leaf in leaves if isinstance(leaf, Tensor)))
    assert len(sizes) == 1


def test_the_output_projection_is_the_embedding():
    model = make_model()
    logits = model(draw_tokens())
    logits.square().sum().backward()
    grad = model.embedding.weight.grad
    assert grad is not None
    assert (grad.abs().sum(1) > 0).all()  # Tokens that are not in the input get a gradient too.
    assert not any("head" in name for name, _ in model.named_parameters())


@pytest.mark.usefixtures("unchecked_annotations")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: model(torch.zeros(2, 3)), "tokens must be"),
        (lambda model: model.generate(torch.zeros(1, 0).long(), 3), "prompt must have shape"),
        (lambda model: model.generate(draw_tokens(), 0), "num_tokens must be"),
        (lambda model: model.generate(draw_tokens(), 3, temperature=-1.0), "temperature must be"),
        (lambda model: model.step(draw_tokens(), (None,)), "state must be None.*2 states"),
        (lambda _: CausalLM(0, dim=8, depth=1, heads=2), "num_tokens must be"),
    ],
)
def test_invalid_input_is_an_error_with_its_name(call, message: str):
    with pytest.raises(ValueError, match=message):
        call(make_model())
