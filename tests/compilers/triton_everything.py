"""Run the kernels of a GPU against every pair of tokens, and tell by how much they differ.

On a CPU in Triton's interpreter, with TEKA_DEVICE=cuda on a GPU. Run in a process of its own: Triton reads
TRITON_INTERPRET while it is imported, and cannot run functions on which the checks of annotations are that the tests
switch on.
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
from tests.contracts.cases import (
    DEVICE,
    build_relative,
    draw_inputs,
    draw_mask,
    relative_change,
    with_leaves,
)
from torch import Tensor, nn
from torch.autograd import grad
from torch.library import opcheck
from torch.utils.checkpoint import checkpoint

from teka import Grid
from teka.functional import Fourier, Relative, Rotary, attention, decode
from teka.functional.backends.triton import bidirectional, causal, launch, operators, recurrent
from teka.nn import Attention

BANDS = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
# Queries and keys of other places, of which blocks and segments are not whole numbers.
ACROSS = {"grid": Grid((5, 7)), "key_grid": Grid((3, 11), spacing=0.5)}
LINE = {"grid": Grid(35)}
DRAWN = torch.rand(2, 35, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
POINTS = {"positions": DRAWN.to(DEVICE) * 9}


def change(found: list[Tensor], truth: list[Tensor]) -> float:
    """The `relative_change` of the tensor for which that is most; NaN if there is one."""
    return float(
        torch.tensor(
            [relative_change(one, other) for one, other in zip(found, truth, strict=True)]
        ).max()
    )


def difference(
    kernel: str,
    relative: str | Relative | None,
    places: dict[str, Any],
    *,
    dtype: torch.dtype = torch.float32,
    dim: int = 6,
    sizes: tuple[float, ...] = (1.0,),
    is_causal: bool = False,
    num_queries: int = 35,
) -> float:
    """How far the output and every gradient are from those of every pair in float64, over what is allowed.

    Args:
        kernel: The content kernel.
        relative: The relative kernel.
        places: Where queries and keys are.
        dtype: Of queries, keys and values.
        dim: Size of queries and keys.
        sizes: Factors of the keys, one after another.
        is_causal: Whether queries see no later keys.
        num_queries: Of whom there are no fewer than keys.
    """
    num_keys = places["key_grid"].num_tokens if "key_grid" in places else num_queries
    inputs = draw_inputs(
        num_queries,
        heads=1 if relative is None else 2,
        dim=dim,
        dim_value=4 if dim < 16 else dim - 1,
    )
    query, key, value = (one.transpose(1, 2).contiguous().transpose(1, 2) for one in inputs)
    key = key * torch.tensor(sizes, device=DEVICE).repeat(num_queries)[:num_queries, None]
    leaves = [
        one.to(dtype).double().requires_grad_()
        for one in (query, key[:, :, :num_keys], value[:, :, :num_keys])
    ]
    axes = places["grid"].num_axes if "grid" in places else 2
    made = (
        build_relative(relative, heads=2, dim=dim, num_axes=axes)
        if isinstance(relative, str)
        else relative
    )
    options: dict[str, Any] = {
        "kernel": kernel,
        "key_mask": draw_mask(2, num_keys),
        "is_causal": is_causal,
    }
    if made is not None:
        made, parameters = with_leaves(made)
        leaves += parameters.values()
        options |= {"relative": made, **places}
    results = []
    for backend, kind in (("linear", dtype), ("dense", torch.float64)):
        output = attention(*(one.to(kind) for one in leaves[:3]), backend=backend, **options)
        cotangent = torch.cos(
            torch.arange(output.numel(), dtype=torch.float64, device=DEVICE)
        ).reshape(output.shape)
        results.append([output, *grad((output * cotangent).sum(), leaves)])
    return change(*results) / BANDS[dtype]


def second_difference() -> float:
    """The same of gradients of gradients, which the plain evaluation gives."""
    leaves = [one.float().requires_grad_() for one in draw_inputs(9, heads=2, dim=4)]

    def second(backend: str) -> list[Tensor]:
        options = {
            "kernel": "squared_relu",
            "relative": "rotary",
            "grid": Grid(9),
            "is_causal": True,
        }
        output = attention(*leaves, **options, backend=backend)
        first = grad(output.square().sum(), leaves, create_graph=True)
        return [*grad(torch.stack([one.square().sum() for one in first]).sum(), leaves)]

    return change(second("linear"), second("dense")) / BANDS[torch.float32]


class Placed(nn.Module):
    """A causal layer on a line, as compilers and exports take it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Attention(8, 2, causal=True, num_axes=1, backend="linear")

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layer(tokens, Grid(9))


def recorded_difference() -> float:
    """The same of a compiled and of an exported layer; infinite unless the export has exactly one node of ours."""
    torch.manual_seed(0)
    model, tokens = Placed().to(DEVICE), torch.randn(2, 9, 8, device=DEVICE, requires_grad=True)
    program = torch.export.export(
        model.eval(), (tokens,), dynamic_shapes=({0: torch.export.Dim("batch", max=64)},)
    )
    if sum("teka" in str(node.target) for node in program.graph.nodes) != 1:
        return float("inf")
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    outputs = [one(tokens) for one in (compiled, model)]
    found, truth = (
        [one, *grad(one.square().sum(), [tokens, *model.parameters()])] for one in outputs
    )
    return (
        max(change(found, truth), change([program.module()(tokens[:1])], [model(tokens[:1])]))
        / BANDS[torch.float32]
    )


def recomputed_difference() -> float:
    """The same of a layer whose activations are computed again for the gradients."""
    model, tokens = Placed().to(DEVICE), torch.randn(2, 9, 8, device=DEVICE, requires_grad=True)
    outputs = [partial(checkpoint, model, use_reentrant=False)(tokens), model(tokens)]
    found, truth = (
        [one, *grad(one.square().sum(), [tokens, *model.parameters()])] for one in outputs
    )
    return change(found, truth) / BANDS[torch.float32]


def change_before(place: int) -> float:
    """1 for every number of a causal output that a key after it changed."""
    query, key, value = (one.float() for one in draw_inputs(35, heads=2, dim=4))
    options: dict[str, Any] = {
        "kernel": "squared_relu",
        "relative": "rotary",
        **LINE,
        "is_causal": True,
    }
    before = attention(query, key, value, backend="linear", **options)
    key[:, :, place:] *= 1e9
    after = attention(query, key, value, backend="linear", **options)
    assert not torch.equal(after, before)
    return float((after != before)[:, :, :place].sum())


def spoiled_by(what: str, token: int) -> float:
    """1 for every number that one NaN, or one infinity, changes of a causal output before it, or fails to spoil after.

    The gradients of what is before are checked too: they are those without it, and 0 from there on.
    """
    options: dict[str, Any] = {
        "kernel": "squared_relu",
        "relative": "rotary",
        **LINE,
        "is_causal": True,
    }
    results = []
    for number in (0.0, float("inf") if what == "value" else float("nan")):
        inputs = [one.float() for one in draw_inputs(35, heads=2, dim=4)]
        inputs[("query", "key", "value").index(what)][:, 1, token, 2] = number
        leaves = [one.requires_grad_() for one in inputs]
        output = attention(*leaves, backend="linear", **options)
        first = output[:, 1, :token].square().sum()
        results.append([output.detach(), *grad(first, leaves)])
    (sound, *gradients), (output, *others) = results
    spoiled = output.isnan()
    expected = torch.zeros_like(spoiled)
    expected[:, 1, token : token + 1 if what == "query" else None] = True
    wrong = (spoiled != expected).sum() + (output != sound)[:, 1, :token].sum()
    return float(wrong) + change(others, gradients) / BANDS[torch.float32]


def stepwise_difference(relative: Relative | None) -> float:
    """The same of outputs token by token, of keys of very different sizes."""
    query, key, value = (one.float() for one in draw_inputs(9, heads=2, dim=6))
    key *= torch.tensor([1e-3, 1.0, 1e4], device=DEVICE).repeat(3)[:, None]
    placed = (
        {} if relative is None else {"relative": relative, "positions": POINTS["positions"][:, :9]}
    )
    options: dict[str, Any] = {
        "kernel": "squared_relu",
        "is_causal": True,
        "backend": "dense",
        **placed,
    }
    truth, outputs, state = (
        attention(query.double(), key.double(), value.double(), **options),
        [],
        None,
    )
    for token in range(9):
        place = None if relative is None else POINTS["positions"][:, token]
        here = slice(token, token + 1)
        those = query[:, :, here], key[:, :, here], value[:, :, here]
        output, state = decode(
            *those, state, kernel="squared_relu", relative=relative, position=place
        )
        outputs.append(output)
    return change([torch.cat(outputs, dim=2)], [truth]) / BANDS[torch.float32]


def check_operator() -> float:
    """0 if torch finds nothing wrong with how the operator is registered; it raises otherwise."""
    query, key, value = (one.float().requires_grad_() for one in draw_inputs(5, heads=2, dim=4))
    angles = torch.rand(1, 2, 5, 2, device=DEVICE, requires_grad=True)
    given = query, key, value, None, None, angles, angles, "relu", "rotary", 1.0, 1e-6, 0.3, False
    utilities = "test_schema", "test_autograd_registration", "test_faketensor"
    opcheck(operators.feature_attention, given, test_utils=utilities)
    return 0.0


def cases() -> Iterator[tuple[str, Callable[[], float]]]:
    """Names of all that is compared, and how."""
    frequency = torch.randn(
        2, 3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    ).to(DEVICE)
    weights = torch.tensor([0.3, 0.1]), torch.tensor([[0.7], [0.2]]), torch.ones(2, 1)
    constant, amplitude, phase = (one.to(DEVICE) for one in weights)
    wave = Fourier(constant, amplitude, frequency[:, :1], phase)
    yield "squared relu across grids", lambda: difference("squared_relu", None, ACROSS)
    growing = (1.0, 1e3, 1e-2, 0.0) * 8 + (
        1e6,
    ) * 3  # the largest keys are those of the last segment
    yield (
        "keys of very different sizes",
        lambda: difference("squared_relu", None, {}, sizes=growing),
    )
    yield "keys of size 0", lambda: difference("relu", None, {}, sizes=(0.0,))
    yield "features made before", lambda: difference("hedgehog", None, ACROSS)
    yield (
        "features made before of both together",
        lambda: difference("optimal", None, ACROSS, dtype=torch.bfloat16),
    )
    yield "rotary across grids", lambda: difference("squared_relu", "rotary", ACROSS)
    yield "rotary, lengths", lambda: difference("elu", Rotary(frequency, "lengths"), POINTS)
    yield (
        "rotary, features",
        lambda: difference("relu", Rotary(frequency, "features"), ACROSS, dtype=torch.bfloat16),
    )
    yield "focused fourier", lambda: difference("focused", wave, ACROSS, dim=5)
    later = partial(difference, is_causal=True)
    yield "causal", lambda: later("focused", None, {}, dtype=torch.float16)
    yield (
        "causal, keys of very different sizes",
        lambda: later("squared_relu", None, {}, sizes=(1e-3, 1.0, 0.0, 1e4)),
    )
    yield "causal, features made before", lambda: later("positive", None, {})
    yield "causal, rotary", lambda: later("squared_relu", "rotary", LINE)
    yield (
        "causal, rotary, lengths",
        lambda: later("elu", Rotary(frequency, "lengths"), POINTS, dtype=torch.bfloat16),
    )
    yield "causal, fourier", lambda: later("relu", wave, POINTS)
    yield "causal, nothing sees what is later", lambda: change_before(20)
    for what, token in (("query", 3), ("key", 20), ("value", 33), ("key", 0)):
        yield f"causal, NaN or an infinity in a {what} at {token}", partial(spoiled_by, what, token)
    if DEVICE != "cpu":
        yield from large_cases()
    yield "token by token", lambda: stepwise_difference(None)
    yield "token by token, rotary", lambda: stepwise_difference(Rotary(frequency))
    yield "token by token, fourier", lambda: stepwise_difference(wave)
    yield "second derivatives", second_difference
    yield "compiled and exported", recorded_difference
    yield "computed again", recomputed_difference
    yield "registration", check_operator


def large_cases() -> Iterator[tuple[str, Callable[[], float]]]:
    """Heads of many features and tokens, with blocks, segments and warps as they are used: for a GPU alone."""
    place = {"grid": Grid((29, 53))}, {"grid": Grid(1537)}
    for is_causal, dtype, dim in itertools.product((False, True), BANDS, (24, 32, 64)):
        for relative in (None, "rotary", "fourier"):
            name = f"{'causal ' if is_causal else ''}{relative} of {dim} features in {str(dtype)[6:]}, 1,537 tokens"
            yield name, partial(
                difference, "squared_relu", relative, place[is_causal], dtype=dtype, dim=dim, is_causal=is_causal,
                sizes=(1.0, 1e2, 1e-2), num_queries=1537,
            )  # fmt: skip


def main(part: int, parts: int) -> None:
    """Print as JSON, by name, what every so-manieth difference is of what is allowed, and how many kernels were run."""
    torch.set_num_threads(1)
    kernels: list[object] = []

    def noted(
        compute: object, *given: Any, run: Callable[..., None] = launch.run, **compiled: Any
    ) -> None:
        kernels.append(compute)
        run(compute, *given, **compiled)

    found: dict[str, tuple[float, int]] = {}
    with pytest.MonkeyPatch.context() as patched:
        if DEVICE == "cpu":
            patched.setattr(launch, "SEGMENT_TOKENS", 32)
        for module in (launch, causal, recurrent, bidirectional):
            patched.setattr(module, "run", noted)
        for name, measure in itertools.islice(cases(), part, None, parts):
            kernels.clear()
            try:
                found[name] = measure(), len(kernels)
            except Exception as error:
                print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
                found[name] = float("inf"), len(kernels)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
