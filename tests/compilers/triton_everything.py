"""Compare the Triton kernels with the dense backend in float64, and print the differences as JSON.

The kernels run on a CPU in Triton's interpreter, or on a GPU with TEKA_DEVICE=cuda. The script needs its own process:
Triton reads TRITON_INTERPRET on import, and it cannot run functions with the type checks that the tests add.
"""

import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

if os.environ.get("TEKA_DEVICE", "cpu") == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import grad
from torch.library import opcheck
from torch.utils.checkpoint import checkpoint

from teka import Grid
from teka.functional import RelativeKernel, Rotary, attention
from teka.functional.backends.triton import launch, operators
from teka.nn import Attention
from tests.contracts.cases import (
    DEVICE,
    build_relative,
    draw_inputs,
    draw_mask,
    relative_error,
    with_leaves,
)

# Largest relative difference by dtype.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
# Cross-attention. The numbers of tokens are no multiples of blocks and segments.
CROSS_GRIDS = {"grid": Grid((5, 7)), "key_grid": Grid((3, 11), spacing=0.5)}
LINE: dict[str, Any] = {"grid": Grid(35)}
RANDOM_POINTS = torch.rand(2, 35, 2, generator=torch.Generator().manual_seed(0)).double()
POINTS = {"positions": RANDOM_POINTS.to(DEVICE) * 9}
CAUSAL_ROTARY: dict[str, Any] = {"kernel": "squared_relu", "relative": "rotary", "is_causal": True}


def largest_change(results: list[Tensor], references: list[Tensor]) -> float:
    """Return the largest `relative_error` of all tensors, or NaN if one is NaN."""
    pairs = zip(results, references, strict=True)
    return float(torch.tensor([relative_error(*pair) for pair in pairs]).max())


def difference(
    kernel: str,
    relative: str | RelativeKernel | None,
    places: dict[str, Any],
    *,
    dtype: torch.dtype = torch.float32,
    dim: int = 6,
    key_factors: tuple[float, ...] = (1.0,),
    is_causal: bool = False,
    num_queries: int = 35,
    heads_first: bool = False,
    drop_all_keys: bool = False,
) -> float:
    """Return the difference of outputs and all gradients from those of the dense backend, in units of the tolerance.

    Args:
        kernel: The content kernel.
        relative: The relative kernel.
        places: Arguments of `attention` for the positions of queries and keys.
        dtype: Dtype of queries, keys and values.
        dim: Size of queries and keys.
        key_factors: Factors that multiply the keys in turn.
        is_causal: True for causal attention.
        num_queries: Number of queries, not below the number of keys.
        heads_first: True for contiguous inputs, False for the memory order (batch, tokens, heads).
        drop_all_keys: True if the mask drops every key of the first sample.
    """
    num_keys = places["key_grid"].num_tokens if "key_grid" in places else num_queries
    query, key, value = draw_inputs(
        num_queries,
        heads=1 if relative is None else 2,
        dim=dim,
        dim_value=4 if dim < 16 else dim - 1,
    )
    factors = torch.tensor(key_factors, device=DEVICE).repeat(num_queries)[:num_queries, None]
    leaves = []
    for tokens in (query, (key * factors)[:, :, :num_keys], value[:, :, :num_keys]):
        ordered = tokens.contiguous()
        if not heads_first:
            ordered = tokens.transpose(1, 2).contiguous().transpose(1, 2)
        leaves.append(ordered.to(dtype).double().requires_grad_())
    num_axes = places["grid"].num_axes if "grid" in places else 2
    if isinstance(relative, str):
        relative = build_relative(relative, heads=2, dim=dim, num_axes=num_axes)
    key_mask = draw_mask(2, num_keys)
    if drop_all_keys:
        key_mask[0] = False
    options: dict[str, Any] = {"kernel": kernel, "key_mask": key_mask, "is_causal": is_causal}
    if relative is not None:
        relative, parameters = with_leaves(relative)
        leaves += parameters.values()
        options |= {"relative": relative, **places}
    results = []
    for backend, backend_dtype in (("linear", dtype), ("dense", torch.float64)):
        tokens = (leaf.to(backend_dtype) for leaf in leaves[:3])
        output = attention(*tokens, backend=backend, **options)
        numbers = torch.arange(output.numel(), dtype=torch.float64, device=DEVICE)
        loss = (output * torch.cos(numbers).reshape(output.shape)).sum()
        results.append([output, *grad(loss, leaves)])
    return largest_change(*results) / TOLERANCES[dtype]


def second_derivative_difference() -> float:
    """Return the difference of second derivatives, which plain PyTorch computes."""
    leaves = [tokens.float().requires_grad_() for tokens in draw_inputs(9, heads=2, dim=4)]

    def second_derivatives(backend: str) -> list[Tensor]:
        output = attention(*leaves, **CAUSAL_ROTARY, grid=Grid(9), backend=backend)
        first = grad(output.square().sum(), leaves, create_graph=True)
        return [*grad(torch.stack([one.square().sum() for one in first]).sum(), leaves)]

    change = largest_change(second_derivatives("linear"), second_derivatives("dense"))
    return change / TOLERANCES[torch.float32]


class CausalLayer(nn.Module):
    """A causal layer on a line of nine tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Attention(8, 2, causal=True, num_axes=1, backend="linear")

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layer(tokens, Grid(9))


def layer_and_tokens() -> tuple[CausalLayer, Tensor]:
    """Return a causal layer and its input."""
    torch.manual_seed(0)
    return CausalLayer().to(DEVICE), torch.randn(2, 9, 8, device=DEVICE, requires_grad=True)


def layer_difference(
    changed: Callable[[Tensor], Tensor], layer: CausalLayer, tokens: Tensor
) -> float:
    """Return the difference of outputs and gradients of two ways to call a layer."""
    results = []
    for call in (changed, layer):
        output = call(tokens)
        results.append([output, *grad(output.square().sum(), [tokens, *layer.parameters()])])
    return largest_change(*results) / TOLERANCES[torch.float32]


def compiled_difference() -> float:
    """Return the difference of a compiled layer."""
    layer, tokens = layer_and_tokens()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    return layer_difference(compiled, layer, tokens)


def exported_difference() -> float:
    """Return the difference of an exported layer, or infinity if its graph has not exactly one of our operators."""
    layer, tokens = layer_and_tokens()
    dynamic_shapes = ({0: torch.export.Dim("batch", max=64)},)
    program = torch.export.export(layer.eval(), (tokens,), dynamic_shapes=dynamic_shapes)
    if sum("teka" in str(node.target) for node in program.graph.nodes) != 1:
        return float("inf")
    first = tokens[:1]
    change = largest_change([program.module()(first)], [layer(first)])
    return change / TOLERANCES[torch.float32]


def checkpointed_difference() -> float:
    """Return the difference of a layer whose activations are recomputed in the backward pass."""
    layer, tokens = layer_and_tokens()
    return layer_difference(partial(checkpoint, layer, use_reentrant=False), layer, tokens)


def changes_before_a_large_key(token: int) -> float:
    """Return the number of causal outputs before a token that change if later keys do."""
    query, key, value = (tokens.float() for tokens in draw_inputs(35, heads=2, dim=4))
    before = attention(query, key, value, backend="linear", **CAUSAL_ROTARY, **LINE)
    key[:, :, token:] *= 1e9
    after = attention(query, key, value, backend="linear", **CAUSAL_ROTARY, **LINE)
    assert not torch.equal(after, before)
    return float((after != before)[:, :, :token].sum())


def errors_of_non_finite_input(name: str, token: int) -> float:
    """Return the number of wrong outputs of causal attention with one NaN or infinity.

    A query makes its own output NaN. A key or value makes its own output and all later ones NaN. Other outputs, and
    the gradients of outputs before the token, stay the same.
    """
    results = []
    for number in (0.0, float("inf") if name == "value" else float("nan")):
        inputs = [tokens.float() for tokens in draw_inputs(35, heads=2, dim=4)]
        inputs[("query", "key", "value").index(name)][:, 1, token, 2] = number
        leaves = [tokens.requires_grad_() for tokens in inputs]
        output = attention(*leaves, backend="linear", **CAUSAL_ROTARY, **LINE)
        loss = output[:, 1, :token].square().sum()
        results.append([output.detach(), *grad(loss, leaves)])
    (finite_output, *finite_gradients), (output, *gradients) = results
    is_nan = output.isnan()
    expected = torch.zeros_like(is_nan)
    expected[:, 1, token : token + 1 if name == "query" else None] = True
    num_wrong = (is_nan != expected).sum() + (output != finite_output)[:, 1, :token].sum()
    change = largest_change(gradients, finite_gradients)
    return float(num_wrong) + change / TOLERANCES[torch.float32]


def errors_of_nan(kernel: str, name: str) -> float:
    """Return the number of wrong outputs of bidirectional attention with one NaN.

    A query makes its own output NaN. A key or value makes all outputs of its head NaN.
    """
    inputs = [tokens.float() for tokens in draw_inputs(35, heads=2, dim=4)]
    inputs[("query", "key", "value").index(name)][:, 1, 30, 2] = float("nan")
    options = {**CAUSAL_ROTARY, "kernel": kernel, "is_causal": False}
    is_nan = attention(*inputs, backend="linear", **options, **LINE).isnan().any(dim=-1)
    expected = torch.zeros_like(is_nan)
    expected[:, 1, 30 if name == "query" else slice(None)] = True
    return float((is_nan != expected).sum())


def empty_batch_errors() -> float:
    """Return 0 if a batch of no samples gives outputs and gradients of the right shapes."""
    for is_causal in (False, True):
        leaves = [tokens[:0].float().requires_grad_() for tokens in draw_inputs(35, heads=2, dim=4)]
        options = {**CAUSAL_ROTARY, "is_causal": is_causal}
        output = attention(*leaves, backend="linear", **options, **LINE)
        gradients = grad(output.sum(), leaves)
        assert output.shape == leaves[2].shape
        assert [one.shape for one in gradients] == [leaf.shape for leaf in leaves]
    return 0.0


def default_device_difference() -> float:
    """Return the difference if another device is the default for new tensors."""
    leaves = [tokens.float().requires_grad_() for tokens in draw_inputs(35, heads=2, dim=4)]
    relative = build_relative("rotary", heads=2, dim=4, num_axes=1)
    results = []
    for device in ("meta", DEVICE):
        with torch.device(device):
            output = attention(
                *leaves, backend="linear", **{**CAUSAL_ROTARY, "relative": relative}, **LINE
            )
        results.append([output, *grad(output.square().sum(), leaves)])
    return largest_change(*results)


def operator_registration() -> float:
    """Return 0 if the operator is registered correctly; otherwise `opcheck` raises."""
    query, key, value = (
        tokens.float().requires_grad_() for tokens in draw_inputs(5, heads=2, dim=4)
    )
    angles = torch.rand(1, 2, 5, 2, device=DEVICE, requires_grad=True)
    utilities = "test_schema", "test_autograd_registration", "test_faketensor"
    for is_causal in (False, True):
        arguments = query, key, value, None, angles, angles, "relu", 1.0, 1e-6, 0.3, is_causal
        opcheck(operators.linear_attention, arguments, test_utils=utilities)
    return 0.0


def cases() -> Iterator[tuple[str, Callable[[], float]]]:
    """Yield the name of each comparison and a function that returns its difference."""
    frequency = torch.randn(2, 3, 2, generator=torch.Generator().manual_seed(1)).double().to(DEVICE)
    by_lengths = Rotary(frequency, "lengths")
    by_features = Rotary(frequency, "features")
    both = partial(difference, "squared_relu")
    causal = partial(difference, is_causal=True)
    # The largest keys belong to the last segment.
    growing = (1.0, 1e3, 1e-2, 0.0) * 8 + (1e6,) * 3
    # The largest keys of the first segment belong to its second block.
    growing_within_segment = (1e-3, 1.0, 0.0, 1.0) * 4 + (1e-3, 1.0, 0.0, 1e4) * 4 + (1.0,) * 3
    yield "squared relu across grids", partial(both, None, CROSS_GRIDS)
    yield "contiguous inputs", partial(both, "rotary", LINE, heads_first=True)
    yield "keys of very different lengths", partial(both, None, {}, key_factors=growing)
    yield "keys of 0", partial(difference, "relu", None, {}, key_factors=(0.0,))
    yield "all keys dropped", partial(both, "rotary", LINE, drop_all_keys=True)
    yield "rotary across grids", partial(both, "rotary", CROSS_GRIDS)
    yield "rotary, lengths", partial(difference, "elu", by_lengths, POINTS)
    yield (
        "rotary, features",
        partial(difference, "relu", by_features, CROSS_GRIDS, dtype=torch.bfloat16),
    )
    for kernel, name in itertools.product(("squared_relu", "elu"), ("query", "key", "value")):
        yield f"{kernel}, NaN in a {name}", partial(errors_of_nan, kernel, name)
    yield "causal", partial(causal, "relu", None, {}, dtype=torch.float16)
    yield (
        "causal, keys of very different lengths",
        partial(causal, "squared_relu", None, {}, key_factors=growing_within_segment),
    )
    yield "causal, rotary", partial(causal, "squared_relu", "rotary", LINE)
    yield (
        "causal, contiguous inputs, all keys dropped",
        partial(causal, "squared_relu", "rotary", LINE, heads_first=True, drop_all_keys=True),
    )
    yield (
        "causal, rotary, lengths",
        partial(causal, "elu", by_lengths, POINTS, dtype=torch.bfloat16),
    )
    yield "causal, outputs before a large key", partial(changes_before_a_large_key, 20)
    for name, token in (("query", 3), ("key", 20), ("value", 33), ("key", 0)):
        yield (
            f"causal, non-finite {name} at {token}",
            partial(errors_of_non_finite_input, name, token),
        )
    if DEVICE != "cpu":
        yield from large_cases()
    yield "empty batch", empty_batch_errors
    yield "default device", default_device_difference
    yield "second derivatives", second_derivative_difference
    yield "compiled", compiled_difference
    yield "exported", exported_difference
    yield "checkpointed", checkpointed_difference
    yield "registration", operator_registration


def large_cases() -> Iterator[tuple[str, Callable[[], float]]]:
    """Yield comparisons with the sizes of real heads, which only a GPU computes in reasonable time."""
    for is_causal, dtype, dim in itertools.product((False, True), TOLERANCES, (24, 32, 64)):
        places = {"grid": Grid(1537)} if is_causal else {"grid": Grid((29, 53))}
        for relative in (None, "rotary"):
            name = f"{dim} features, {relative}, {str(dtype)[6:]}, causal={is_causal}, 1,537 tokens"
            yield (
                name,
                partial(
                    difference,
                    "squared_relu",
                    relative,
                    places,
                    dtype=dtype,
                    dim=dim,
                    is_causal=is_causal,
                    key_factors=(1.0, 1e2, 1e-2),
                    num_queries=1537,
                ),
            )


def main(part: int, num_parts: int) -> None:
    """Print the difference and the number of kernel launches of every case of a part, by name, as JSON."""
    torch.set_num_threads(1)
    launches: list[object] = []
    run = launch.run_on_tensor_device

    def counted_run(function: object, *arguments: Any, **options: Any) -> None:
        launches.append(function)
        run(function, *arguments, **options)

    results: dict[str, tuple[float, int]] = {}
    with pytest.MonkeyPatch.context() as patched:
        if DEVICE == "cpu":
            patched.setattr(launch, "SEGMENT_TOKENS", 32)
        patched.setattr(launch, "run_on_tensor_device", counted_run)
        for name, measure in itertools.islice(cases(), part, None, num_parts):
            launches.clear()
            try:
                results[name] = measure(), len(launches)
            except Exception as error:  # any error counts as a wrong result
                print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
                results[name] = float("inf"), len(launches)
    print(json.dumps(results))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
