"""Transforms of torch.func and second derivatives of every kernel, relative kernel and backend.

If PyTorch does not support a transform of an operation, the test expects its error.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, jvp, vmap

from teka import Grid
from teka.functional import attention
from teka.nn import Attention, AttentionPool, MultiheadAttention
from tests.contracts.cases import (
    FAST_CASES,
    PAIRS,
    SUPPORTED_CASES,
    Case,
    build_kernel,
    build_relative,
    draw_inputs,
    parametrize_by_kernel,
    relative_error,
    with_leaves,
)

GRIDS = {False: Grid((2, 3)), True: Grid(5)}
HEADS, DIM, DIM_VALUE = 2, 4, 3
BAND = 1e-9
NAMED = [case for case in SUPPORTED_CASES if case.backend != "auto"]
# The fused softmax of PyTorch has a backward pass, but no jvp and no second derivative.
FUSED = {
    ("softmax", relative)
    for relative in (None, "rotation", "rotation_joint", "rotary", "transformer_xl")
}
ONCE = [case for case in NAMED if case.backend == "dense" and (case.kernel, case.relative) in FUSED]
TWICE = [case for case in NAMED if case not in ONCE]
# These backends recompute rows that depend on the data, which vmap does not support.
UNMAPPED = [case for case in NAMED if case.backend == "fft"]
MAPPED = [case for case in NAMED if case not in UNMAPPED]
Attend = Callable[..., Tensor]
# vmap has no rule for the fused softmax of PyTorch and loops over the samples.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")


def draw(seed: int, num_tokens: int) -> list[Tensor]:
    """Return query, key and value of one sample."""
    return draw_inputs(num_tokens, batch=1, heads=HEADS, dim=DIM, dim_value=DIM_VALUE, seed=seed)


def build(
    case: Case, *, is_causal: bool = False
) -> tuple[Callable[[str], Attend], list[Tensor], list[Tensor]]:
    """Return attention as a function of a backend, with a point and a direction for derivatives."""
    grid = GRIDS[is_causal]
    relative = build_relative(
        case.relative,
        heads=HEADS,
        dim=DIM,
        num_axes=grid.num_axes,
        kernel=case.kernel,
        max_distance=2,
    )
    kernel = build_kernel(case.kernel, relative, DIM)
    names, leaves = [], []
    if relative is not None:
        relative, found = with_leaves(relative)
        names, leaves = list(found), [leaf.detach() for leaf in found.values()]

    def attention_with_backend(backend: str) -> Attend:
        def attend(query: Tensor, key: Tensor, value: Tensor, *tensors: Tensor) -> Tensor:
            changed = relative
            if changed is not None:
                assert dataclasses.is_dataclass(changed)
                changed = dataclasses.replace(changed, **dict(zip(names, tensors, strict=True)))
            return attention(
                query,
                key,
                value,
                kernel=kernel,
                relative=changed,
                grid=grid,
                backend=backend,
                is_causal=is_causal,
            )

        return attend

    point = [*draw(1, grid.num_tokens), *leaves]
    generator = torch.Generator().manual_seed(2)
    return (
        attention_with_backend,
        point,
        [torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype) for tensor in point],
    )


def weighted_sum_of(attend: Attend) -> Attend:
    """Return a function that returns a weighted sum of the output."""

    def total(*tensors: Tensor) -> Tensor:
        output = attend(*tensors)
        weight = torch.linspace(-1, 1, output.numel(), dtype=output.dtype)
        return (output * weight.reshape(output.shape)).sum()

    return total


def second_derivative(total: Attend, point: list[Tensor], direction: list[Tensor]) -> list[Tensor]:
    """Return the product of the Hessian and a direction by two backward passes."""
    leaves = [tensor.clone().requires_grad_() for tensor in point]
    gradients = torch.autograd.grad(
        total(*leaves), leaves, create_graph=True, materialize_grads=True
    )
    along = sum(
        ((tensor * other).sum() for tensor, other in zip(gradients, direction, strict=True)),
        start=0.0 * leaves[0].sum(),  # if no gradient depends on the leaves
    )
    return list(torch.autograd.grad(along, leaves, materialize_grads=True))


def largest_error(actual: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest relative error of several tensors."""
    return max(
        relative_error(tensor, target) for tensor, target in zip(actual, expected, strict=True)
    )


@parametrize_by_kernel(MAPPED)
def test_vmap_equals_a_loop(case: Case):
    attention_with_backend, point, _ = build(case)
    num_tokens = GRIDS[False].num_tokens
    many = [
        torch.stack(tensors)
        for tensors in zip(*(draw(seed, num_tokens) for seed in range(3)), strict=True)
    ]
    over = (0, 0, 0, *(None for _ in point[3:]))
    together = vmap(attention_with_backend(case.backend), in_dims=over)(*many, *point[3:])
    alone = torch.stack(
        [
            attention_with_backend(case.backend)(*(tensor[index] for tensor in many), *point[3:])
            for index in range(3)
        ]
    )
    assert relative_error(together, alone) <= BAND


@parametrize_by_kernel(UNMAPPED)
def test_vmap_over_data_dependent_rows_is_an_error(case: Case):
    attention_with_backend, point, _ = build(case)
    with pytest.raises(RuntimeError, match=r"vmap.*dynamic shape"):
        vmap(attention_with_backend("fft"), in_dims=(0, *(None for _ in point[1:])))(
            torch.stack([point[0]] * 2), *point[1:]
        )


@parametrize_by_kernel(TWICE)
def test_jvp_is_the_transpose_of_vjp(case: Case):
    attention_with_backend, point, direction = build(case)
    forwards = jvp(attention_with_backend(case.backend), tuple(point), tuple(direction))
    output, tangent = forwards[0], forwards[1]
    leaves = [tensor.clone().requires_grad_() for tensor in point]
    weight = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).reshape(output.shape)
    gradients = torch.autograd.grad(
        attention_with_backend("dense")(*leaves), leaves, weight, materialize_grads=True
    )
    backwards = sum(
        (tensor * other).sum() for tensor, other in zip(gradients, direction, strict=True)
    )
    assert math.isclose(
        float((tangent * weight).sum()), float(backwards), rel_tol=BAND, abs_tol=BAND
    )


@parametrize_by_kernel(FAST_CASES)
def test_jacobian_equals_dense(case: Case):
    attention_with_backend, point, _ = build(case)
    ours, expected = (
        list(jacrev(attention_with_backend(backend), argnums=tuple(range(len(point))))(*point))
        for backend in (case.backend, "dense")
    )
    assert largest_error(ours, expected) <= BAND


@parametrize_by_kernel(TWICE)
def test_second_derivatives_equal_dense(case: Case):
    attention_with_backend, point, direction = build(case)
    reference = second_derivative(
        weighted_sum_of(attention_with_backend("dense")), point, direction
    )
    places = tuple(range(len(point)))
    forwards = jvp(
        grad(weighted_sum_of(attention_with_backend(case.backend)), argnums=places),
        tuple(point),
        tuple(direction),
    )[1]
    assert largest_error(list(forwards), reference) <= BAND
    if case.backend != "dense":
        backwards = second_derivative(
            weighted_sum_of(attention_with_backend(case.backend)), point, direction
        )
        assert largest_error(backwards, reference) <= BAND


@parametrize_by_kernel(TWICE)
def test_shared_inputs_have_correct_gradients(case: Case):
    attention_with_backend, point, direction = build(case)

    def second_gradients(backend: str) -> list[Tensor]:
        def total(tokens: Tensor, *tensors: Tensor) -> Tensor:
            query = torch.sin(tokens)
            return weighted_sum_of(attention_with_backend(backend))(query, tokens, query, *tensors)

        leaves = [tensor.clone().requires_grad_() for tensor in (point[1], *point[3:])]
        first = torch.autograd.grad(
            total(*leaves), leaves, create_graph=True, materialize_grads=True
        )
        products = [
            (tensor * other).sum()
            for tensor, other in zip(first, (direction[1], *direction[3:]), strict=True)
        ]
        along = torch.stack(products).sum()
        return [*first, *torch.autograd.grad(along, leaves, materialize_grads=True)]

    assert largest_error(second_gradients(case.backend), second_gradients("dense")) <= BAND


@parametrize_by_kernel([case for case in TWICE if case.backend in ("dense", "linear", "rings")])
def test_transforms_of_causal_attention(case: Case):
    attention_with_backend, point, direction = build(case, is_causal=True)
    backend = case.backend
    reference = second_derivative(
        weighted_sum_of(attention_with_backend("dense")), point, direction
    )
    forwards = jvp(
        grad(weighted_sum_of(attention_with_backend(backend)), argnums=tuple(range(len(point)))),
        tuple(point),
        tuple(direction),
    )[1]
    assert largest_error(list(forwards), reference) <= BAND
    together = vmap(attention_with_backend(backend), in_dims=(0, *(None for _ in point[1:])))(
        torch.stack([point[0]] * 2), *point[1:]
    )
    assert relative_error(together[1], attention_with_backend(backend)(*point)) <= BAND


@parametrize_by_kernel(ONCE)
def test_fused_softmax_has_no_second_derivative(case: Case):
    attention_with_backend, point, direction = build(case)
    with pytest.raises(RuntimeError, match="scaled_dot_product"):
        second_derivative(weighted_sum_of(attention_with_backend("dense")), point, direction)


@parametrize_by_kernel(PAIRS)
def test_vmap_over_parameters_equals_a_loop(pair: Case):
    torch.manual_seed(0)
    grid = GRIDS[False]
    layers = [
        Attention(8, 2, kernel=pair.kernel, relative=pair.relative).double().eval()
        for _ in range(2)
    ]
    tokens = torch.randn(2, 1, grid.num_tokens, 8, dtype=torch.float64)
    parameters = [
        {name: parameter.detach() for name, parameter in layer.named_parameters()}
        for layer in layers
    ]
    stacked = {name: torch.stack([state[name] for state in parameters]) for name in parameters[0]}

    def call(parameters: dict[str, Tensor], tokens: Tensor) -> Tensor:
        return functional_call(layers[0], parameters, (tokens, grid))

    together = vmap(call)(stacked, tokens)
    alone = torch.stack([call(state, tokens[index]) for index, state in enumerate(parameters)])
    assert relative_error(together, alone) <= BAND
    # Gradients per sample, as in differential privacy.
    of_samples = vmap(grad(lambda sample: call(parameters[0], sample).square().sum()))(tokens)
    expected = torch.func.grad(
        lambda both: sum(call(parameters[0], sample).square().sum() for sample in both)
    )(tokens)
    assert relative_error(of_samples, expected) <= BAND


MASK = torch.arange(12) < torch.tensor([[12], [8], [3]])


@pytest.mark.parametrize("argument", ["key_mask", "lengths", "key_padding_mask"])
@pytest.mark.parametrize("kernel", ["softmax", "squared_relu"])
def test_per_sample_gradients_ignore_padding(kernel: str, argument: str):
    if argument == "key_padding_mask":
        layer: nn.Module = MultiheadAttention(8, 2, kernel=kernel, batch_first=True).double()
    else:
        layer = Attention(8, 2, kernel=kernel, num_axes=1).double()
    tokens, parameters = (
        draw_inputs(12, batch=3, heads=1, dim=8)[0][:, 0],
        dict[str, Tensor](layer.named_parameters()),
    )
    masks = {"key_mask": MASK, "lengths": MASK.sum(dim=1), "key_padding_mask": ~MASK}[argument]

    def loss(parameters: dict[str, Tensor], tokens: Tensor, mask: Tensor) -> Tensor:
        tokens, mask = tokens[None], mask[None]
        arguments = (tokens, Grid(12)) if argument != "key_padding_mask" else (tokens,) * 3
        output = functional_call(layer, parameters, arguments, {argument: mask})
        return (output if isinstance(output, Tensor) else output[0]).square().sum()

    together = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, tokens, masks)
    for sample in range(3):
        alone = torch.autograd.grad(
            loss(parameters, tokens[sample], masks[sample]), list(parameters.values())
        )
        for name, expected in zip(parameters, alone, strict=True):
            assert relative_error(together[name][sample], expected) <= 1e-10, name


def test_jit_trace_is_an_error():
    with pytest.raises(RuntimeError, match=r"does not support torch\.jit\.trace"):
        torch.jit.trace(Attention(8, 2, relative=None), torch.zeros(1, 5, 8))


@pytest.mark.filterwarnings("ignore:.*nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_are_errors_with_a_hint(layout: torch.layout, unchecked_annotations: None):
    nested = torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(5, 8)], layout=layout)
    mask = torch.nested.nested_tensor([torch.ones(3).bool(), torch.ones(5).bool()], layout=layout)
    layers = [
        Attention(8, 2, relative=None),
        MultiheadAttention(8, 2, batch_first=True),
        AttentionPool(8, 2),
    ]
    calls: list[Callable[[], Any]] = [
        partial(layers[0], nested),
        partial(layers[1], *[nested] * 3),
        partial(layers[2], nested),
    ]
    calls.append(partial(layers[0], torch.zeros(2, 5, 8), key_mask=mask))
    heads = torch.nested.nested_tensor([torch.randn(2, 3, 4), torch.randn(2, 3, 4)], layout=layout)
    calls.append(partial(attention, heads, heads, heads))
    for call in calls:
        with pytest.raises(ValueError, match=r"must be a padded tensor.*got a nested tensor"):
            call()
