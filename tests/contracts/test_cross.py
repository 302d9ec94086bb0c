from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from teka import Grid
from teka.functional import (
    ContentKernel,
    FeatureKernel,
    JointSinusoidalBias,
    RelativeKernel,
    attention,
)
from teka.functional.attention_plan import AttentionPlan
from teka.functional.positions import Positions
from teka.nn import Attention
from tests.contracts.cases import (
    DEVICE,
    PAIRS,
    PAIRS_WITH_POSITIONS,
    Case,
    build_kernel,
    build_relative,
    cross_backends,
    draw_inputs,
    draw_mask,
    for_each,
    parametrize_by_kernel,
    reference_attention,
    relative_error,
    roll_tokens,
    with_leaves,
)

TOLERANCE = 1e-10
SCALE = 0.4
HEADS, DIM = 3, 5

COARSE, FINE = Grid((3, 5), spacing=2.0, origin=0.5), Grid((6, 10))
# Grids of the queries and of the keys.
GRIDS = {
    "up": (FINE, COARSE),
    "down": (COARSE, FINE),
    "another extent": (Grid((2, 7)), Grid((5, 3), origin=(3.0, -2.0))),
    "spacings of no common measure": (
        Grid((3, 4), spacing=(1.0, 0.7)),
        Grid((2, 5), spacing=1.3, origin=(-0.4, 2.0)),
    ),
    "one cell": (Grid((1, 1), origin=(1.0, 2.0)), Grid((4, 3))),
}
# The cells of the coarse grid have the positions of cells of the fine grid.
ALIGNED = (Grid((2, 3), spacing=2.0), Grid((5, 7), origin=(1.0, -1.0)))


def build_pair(pair: Case, num_axes: int = 2) -> tuple[ContentKernel, RelativeKernel | None]:
    relative = build_relative(
        pair.relative, kernel=pair.kernel, heads=HEADS, dim=DIM, num_axes=num_axes, max_distance=4
    )
    return build_kernel(pair.kernel, relative, DIM), relative


def draw_cross_inputs(num_queries: int, num_keys: int, seed: int = 0) -> list[Tensor]:
    query = draw_inputs(num_queries, heads=HEADS, dim=DIM, seed=seed + 1)[0]
    return [query, *draw_inputs(num_keys, heads=HEADS, dim=DIM, seed=seed)[1:]]


def grids_for(pair: Case) -> dict[str, tuple[Grid, Grid]]:
    """Return grids that the relative kernel supports. A table needs aligned cells."""
    return {"aligned": ALIGNED} if pair.relative == "table" else GRIDS


def supported_backends(
    kernel: ContentKernel, relative: RelativeKernel | None, positions: Positions
) -> set[str]:
    num_queries, num_keys = (
        sites.num_queries_with_position or 1 for sites in (positions, positions.key_positions)
    )
    placed = None if relative is None else relative.adapt_to_positions(positions)
    plan = AttentionPlan(kernel, placed, positions, 1.0, is_causal=False)
    return set(
        plan.estimate_costs(
            heads=1, num_queries=num_queries, num_keys=num_keys, dim=DIM, dim_value=4, batch=1
        )
    )


def fit_kernel(
    inputs: list[Tensor],
    kernel: ContentKernel,
    relative: RelativeKernel | None,
    positions: Positions,
    mask: Tensor | None,
):
    """Return the kernel fitted to all queries and keys."""
    if not isinstance(kernel, FeatureKernel):
        return kernel
    query, key, scale = inputs[0], inputs[1], SCALE
    if isinstance(relative, JointSinusoidalBias):
        query, key = relative.append_sinusoids(query, key, positions, scale=scale)
        scale = 1.0
    return kernel.with_statistics(query, key, scale=scale, query_mask=None, key_mask=mask)


def attend(
    inputs: list[Tensor], kernel: ContentKernel, relative: RelativeKernel | None, **options: Any
) -> Tensor:
    return attention(*inputs, kernel=kernel, relative=relative, scale=SCALE, **options)


@parametrize_by_kernel(PAIRS)
def test_supported_backends_are_the_documented_ones(pair: Case):
    kernel, relative = build_pair(pair)
    for query, key in [*grids_for(pair).values(), ALIGNED]:
        alike = query.spacing == key.spacing
        assert supported_backends(
            kernel, relative, Positions(query, key=Positions(key))
        ) == cross_backends(pair.kernel, pair.relative, same_spacing=alike)
    if pair.relative != "table":
        anywhere = Positions(points=torch.rand(7, 2), key=Positions(points=torch.rand(2, 11, 2)))
        documented = cross_backends(pair.kernel, pair.relative, same_spacing=False) - {"toeplitz"}
        assert supported_backends(kernel, relative, anywhere) == documented


@parametrize_by_kernel(PAIRS, masked=[False, True])
def test_backends_equal_the_equation_between_two_grids(pair: Case, masked: bool):
    for query_grid, key_grid in grids_for(pair).values():
        positions = Positions(query_grid, key=Positions(key_grid))
        inputs = draw_cross_inputs(query_grid.num_tokens, key_grid.num_tokens)
        mask = draw_mask(2, key_grid.num_tokens) if masked else None
        kernel, relative = build_pair(pair)
        keep = None if mask is None else mask[:, None]
        fitted_kernel = fit_kernel(inputs, kernel, relative, positions, mask)
        expected = reference_attention(
            inputs, fitted_kernel, relative, positions, scale=SCALE, keep=keep
        )
        for backend in sorted(supported_backends(kernel, relative, positions)):
            output = attend(
                inputs,
                kernel,
                relative,
                grid=query_grid,
                key_grid=key_grid,
                key_mask=mask,
                backend=backend,
            )
            assert output.shape == (2, HEADS, query_grid.num_tokens, 4)
            assert relative_error(output, expected) <= TOLERANCE, backend


@parametrize_by_kernel(PAIRS_WITH_POSITIONS)
def test_backends_equal_the_equation_between_any_positions(pair: Case):
    generator = torch.Generator().manual_seed(2)
    some, others = (
        6 * torch.rand(*size, 2, dtype=torch.float64, generator=generator).to(DEVICE)
        for size in ((7,), (2, 11))
    )
    inputs = draw_cross_inputs(7, 11)
    kernel, relative = build_pair(pair)
    for here, there in (
        (Positions(points=some), Positions(points=others)),
        (Positions(Grid((7, 1))), Positions(points=others)),
    ):
        positions = replace(here, key=there)
        fitted_kernel = fit_kernel(inputs, kernel, relative, positions, None)
        expected = reference_attention(inputs, fitted_kernel, relative, positions, scale=SCALE)
        for backend in sorted(supported_backends(kernel, relative, positions)):
            output = attend(
                inputs,
                kernel,
                relative,
                grid=here.grid,
                positions=here.points,
                key_positions=there.points,
                backend=backend,
            )
            assert relative_error(output, expected) <= TOLERANCE, backend


@pytest.mark.parametrize(
    "case",
    [
        Case(pair.kernel, pair.relative, backend)
        for pair in PAIRS
        for backend in sorted(
            cross_backends(pair.kernel, pair.relative, same_spacing=True) - {"dense"}
        )
    ],
    ids=str,
)
@settings(max_examples=3)
@given(data=st.data())
def test_values_and_gradients_equal_the_dense_backend(case: Case, data: st.DataObject):
    num_axes = data.draw(st.integers(1, 3))
    sides = st.tuples(*[st.integers(1, {1: 11, 2: 6, 3: 3}[num_axes])] * num_axes)
    needs_cells = case.backend == "fft" or case.relative == "table"
    spacing = 1.0 if needs_cells else data.draw(st.sampled_from([1.0, 2.0, 0.7]))
    origin = (
        data.draw(st.integers(-4, 4))
        if case.relative == "table"
        else data.draw(st.sampled_from([0.0, 0.5, -3.3]))
    )
    grid, key_grid = (
        Grid(data.draw(sides)),
        Grid(data.draw(sides), spacing=spacing, origin=float(origin)),
    )
    masked, seed = data.draw(st.booleans()), data.draw(st.integers(0, 2**16))

    def run(backend: str) -> dict[str, Tensor]:
        drawn = draw_cross_inputs(grid.num_tokens, key_grid.num_tokens, seed)
        leaves = {name: tensor.requires_grad_() for name, tensor in zip("qkv", drawn, strict=True)}
        kernel, relative = build_pair(case, num_axes)
        kernel, more = with_leaves(kernel)
        leaves |= {f"kernel.{name}": leaf for name, leaf in more.items()}
        if relative is not None:
            relative, more = with_leaves(relative)
            leaves |= {f"relative.{name}": leaf for name, leaf in more.items()}
        mask = draw_mask(2, key_grid.num_tokens, seed) if masked else None
        output = attend(
            drawn, kernel, relative, grid=grid, key_grid=key_grid, key_mask=mask, backend=backend
        )
        cotangent = torch.cos(
            torch.arange(output.numel(), dtype=torch.float64, device=DEVICE)
        ).reshape(output.shape)
        gradients = torch.autograd.grad(
            (output * cotangent).sum(), list(leaves.values()), allow_unused=True
        )
        results = {"output": output.detach()}
        for name, leaf, gradient in zip(leaves, leaves.values(), gradients, strict=True):
            results[name] = torch.zeros_like(leaf) if gradient is None else gradient
        return results

    reference, fast = run("dense"), run(case.backend)
    for name, expected in reference.items():
        assert relative_error(fast[name], expected) <= TOLERANCE, name


@parametrize_by_kernel(PAIRS)
def test_masked_keys_have_no_effect(pair: Case):
    query_grid, key_grid = next(iter(grids_for(pair).values()))
    query, key, value = draw_cross_inputs(query_grid.num_tokens, key_grid.num_tokens)
    mask = draw_mask(2, key_grid.num_tokens)
    _, other_key, other_value = draw_inputs(
        key_grid.num_tokens, heads=HEADS, dim=DIM, seed=7, scale=100.0
    )
    keep = mask[:, None, :, None]
    others = [query, torch.where(keep, key, other_key), torch.where(keep, value, other_value)]
    kernel, relative = build_pair(pair)
    for backend in sorted(
        supported_backends(kernel, relative, Positions(query_grid, key=Positions(key_grid)))
    ):
        plain, padded = (
            attend(
                inputs,
                kernel,
                relative,
                grid=query_grid,
                key_grid=key_grid,
                key_mask=mask,
                backend=backend,
            )
            for inputs in ([query, key, value], others)
        )
        assert relative_error(padded, plain) <= TOLERANCE, backend


@parametrize_by_kernel([pair for pair in PAIRS_WITH_POSITIONS if pair.is_exactly_equivariant])
@settings(max_examples=4)
@given(shift=st.lists(st.floats(-50, 50), min_size=1, max_size=3), seed=st.integers(0, 2**16))
def test_shifting_queries_and_keys_changes_nothing(pair: Case, shift: list[float], seed: int):
    generator = torch.Generator().manual_seed(seed)
    here, there = (
        6 * torch.rand(*size, len(shift), dtype=torch.float64, generator=generator).to(DEVICE)
        for size in ((2, 5), (7,))
    )
    inputs = draw_cross_inputs(5, 7, seed)
    kernel, relative = build_pair(pair, len(shift))
    outputs = [
        attend(inputs, kernel, relative, positions=here + offset, key_positions=there + offset)
        for offset in (torch.zeros_like(there[0]), there.new_tensor(shift))
    ]
    assert relative_error(outputs[1], outputs[0]) <= TOLERANCE


@parametrize_by_kernel([pair for pair in PAIRS if pair.is_exactly_equivariant])
def test_shifting_only_queries_changes_the_output(pair: Case):
    query_grid, key_grid = ALIGNED
    inputs = draw_cross_inputs(query_grid.num_tokens, key_grid.num_tokens)
    kernel, relative = build_pair(pair)
    moved = Grid((2, 3), spacing=2.0, origin=(1.0, 0.0))
    outputs = [
        attend(inputs, kernel, relative, grid=grid, key_grid=key_grid)
        for grid in (query_grid, moved)
    ]
    assert (relative_error(outputs[1], outputs[0]) > 1e-3) == (pair.relative is not None)


@parametrize_by_kernel([pair for pair in PAIRS if pair.relative != "rotation_joint"])
def test_rolling_both_grids_rolls_the_output(pair: Case):
    coarse = Grid(
        (3, 5), spacing=2.0, origin=0.0 if pair.relative == "table" else 0.5, periodic=True
    )
    fine = Grid((6, 10), periodic=True)
    kernel, relative = build_pair(pair)
    for query_grid, key_grid in ((coarse, fine), (fine, coarse)):
        inputs = draw_cross_inputs(query_grid.num_tokens, key_grid.num_tokens)
        steps = {coarse: (1, -2), fine: (2, -4)}
        rolled = [roll_tokens(query_grid, inputs[0], steps[query_grid])]
        rolled += [roll_tokens(key_grid, tensor, steps[key_grid]) for tensor in inputs[1:]]
        for backend in sorted(
            supported_backends(kernel, relative, Positions(query_grid, key=Positions(key_grid)))
        ):
            before, after = (
                attend(
                    tensors, kernel, relative, grid=query_grid, key_grid=key_grid, backend=backend
                )
                for tensors in (inputs, rolled)
            )
            assert (
                relative_error(after, roll_tokens(query_grid, before, steps[query_grid]))
                <= TOLERANCE
            ), backend


@parametrize_by_kernel(PAIRS)
def test_layer_attends_to_a_finer_or_coarser_context(pair: Case):
    coarse = Grid((3, 5), spacing=2.0, origin=0.0 if pair.relative == "table" else 0.5)
    torch.manual_seed(0)
    layer = (
        Attention(8, 2, kernel=pair.kernel, relative=pair.relative, context_dim=6)
        .double()
        .eval()
        .to(DEVICE)
    )
    mask = draw_mask(2, FINE.num_tokens)
    for query_grid, key_grid in ((coarse, FINE), (FINE, coarse)):
        tokens = torch.randn(2, query_grid.num_tokens, 8, dtype=torch.float64).to(DEVICE)
        context = torch.randn(2, key_grid.num_tokens, 6, dtype=torch.float64).to(DEVICE)
        mask = draw_mask(2, key_grid.num_tokens)
        output = layer(tokens, query_grid, mask, context=context, context_grid=key_grid)
        assert output.shape == tokens.shape
        # Positions give the same output as grids, and masked tokens have no effect.
        if pair.relative != "table":
            by_positions = layer(
                tokens,
                positions=query_grid.positions(dtype=torch.float64, device=DEVICE),
                key_mask=mask,
                context=context.masked_fill(~mask[..., None], 3.0),
                context_positions=key_grid.positions(dtype=torch.float64, device=DEVICE),
            )
            assert relative_error(by_positions, output) <= TOLERANCE
        # Every output depends on its own query only.
        other = tokens.clone()
        other[:, 1:] = torch.randn_like(other[:, 1:])
        first = layer(other, query_grid, mask, context=context, context_grid=key_grid)[:, :1]
        if pair.kernel != "optimal":  # depends on the mean of all queries
            assert relative_error(first, output[:, :1]) <= TOLERANCE


def test_lengths_apply_to_the_context():
    torch.manual_seed(0)
    layer = Attention(8, 2, relative="fourier", context_dim=6).double()
    tokens, context = torch.randn(2, 15, 8).double(), torch.randn(2, 11, 6).double()
    context_positions = torch.rand(2, 11, 2).double()
    together = layer(
        tokens,
        COARSE,
        context=context,
        context_positions=context_positions,
        lengths=torch.tensor([11, 4]),
    )
    for sample, length in enumerate((11, 4)):
        part = slice(sample, sample + 1)
        alone = layer(
            tokens[part],
            COARSE,
            context=context[part, :length],
            context_positions=context_positions[part, :length],
        )
        assert relative_error(together[part], alone) <= TOLERANCE


def call(**changed: Any) -> Tensor:
    query, key, value = draw_cross_inputs(15, 60)
    arguments: dict[str, Any] = {"relative": "fourier", "grid": COARSE, "key_grid": FINE, **changed}
    return attention(query, key, value, **{"kernel": "squared_relu", **arguments})


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "other axes": (
        {"key_grid": Grid(60)},
        r"key_grid or key_positions must be of 2 axes.*got 1 axes",
    ),
    "other axes of positions": (
        {"key_grid": None, "key_positions": torch.zeros(60, 3)},
        r"key_grid or key_positions must be of 2 axes.*got 3 axes",
    ),
    "a torus among planes": (
        {"key_grid": Grid((6, 10), periodic=True)},
        r"periods \(None, None\) of `grid`",
    ),
    "another period": (
        {
            "grid": Grid((3, 5), spacing=2.0, periodic=True),
            "key_grid": Grid((5, 12), periodic=True),
        },
        r"periods \(6.0, 10.0\) of `grid`",
    ),
    "a prefix": ({"num_prefix_tokens": 1}, r"num_prefix_tokens|must have 1 prefix"),
    "keys without positions": ({"key_grid": None}, r"0 prefix \+ 15 tokens|got 60 tokens"),
    "queries without positions": ({"grid": None}, r"grid or positions must be given.*got neither"),
    "keys with two kinds of positions": (
        {"key_positions": torch.zeros(60, 2)},
        r"key_grid or key_positions must be given.*got both",
    ),
    "a key grid of another length": (
        {"key_grid": Grid((6, 9))},
        r"must have 0 prefix \+ 54 tokens.*got 60 tokens",
    ),
    "causality": (
        {"is_causal": True},
        r"key must have 15 tokens, the same number as query.*got shape .*",
    ),
    "a table of misaligned grids": (
        {"relative": "table"},
        r"key_grid must be aligned with .*With relative='table'",
    ),
    "a table of positions": (
        {"relative": "table", "key_grid": None, "key_positions": torch.zeros(60, 2)},
        r"key_grid must be a grid, not bare positions, with relative='table'.*got None",
    ),
    "rings": (
        {"relative": "clipped", "backend": "rings"},
        r"backend must be one of 'auto', 'dense'.*got 'rings'",
    ),
    "fft of two spacings": (
        {"relative": "quadratic", "backend": "fft"},
        r"backend must be one of 'auto', 'dense', 'toeplitz'.*got 'fft'",
    ),
    "the joint form on a torus": (
        {
            "relative": "rotation_joint",
            "grid": Grid((3, 5), spacing=2.0, periodic=True),
            "key_grid": Grid((6, 10), periodic=True),
            "kernel": "softmax",
        },
        r"no periodic axis with relative='rotation_joint'",
    ),
}


@for_each(BAD)
def test_wrong_arguments_are_errors(fault: tuple[dict[str, Any], str]):
    changed, message = fault
    with pytest.raises(ValueError, match=message):
        call(**changed)


def test_prefix_tokens_need_self_attention():
    inputs = draw_cross_inputs(16, 61)
    with pytest.raises(
        ValueError, match=r"num_prefix_tokens must be 0 if the keys have their own positions.*got 1"
    ):
        attention(*inputs, relative="fourier", grid=COARSE, key_grid=FINE, num_prefix_tokens=1)


BAD_CONTEXTS: dict[str, tuple[dict[str, Any], str]] = {
    "a grid without a context": (
        {"context_grid": FINE},
        "context_grid must be None without a context.*got a value",
    ),
    "positions without a context": (
        {"context_positions": torch.zeros(60, 2)},
        "context_positions must be None without a context.*got a value",
    ),
    "missing context": ({}, "context must be tokens of size context_dim = 6.*got None"),
    "a context of another size": (
        {"context": torch.zeros(2, 60, 8), "context_grid": FINE},
        r"context must have shape \(2, tokens, 6\).*got \(2, 60, 8\)",
    ),
    "a context of another batch": (
        {"context": torch.zeros(1, 60, 6)},
        r"context must have .*got \(1, 60, 6\)",
    ),
    "a number of queries": (
        {"context": torch.zeros(2, 60, 6), "context_grid": FINE, "num_queries": 3},
        "num_queries must be None, got 3. With a relative kernel, a context or causal=True",
    ),
}


@for_each(BAD_CONTEXTS)
def test_wrong_context_is_an_error(fault: tuple[dict[str, Any], str]):
    changed, message = fault
    with pytest.raises(ValueError, match=message):
        Attention(8, 2, relative="fourier", context_dim=6)(torch.zeros(2, 15, 8), COARSE, **changed)


def test_causal_layer_needs_a_context_of_the_same_length():
    layer = Attention(8, 2, relative="fourier", context_dim=6, causal=True)
    with pytest.raises(ValueError, match="the same number as query"):
        layer(torch.zeros(2, 15, 8), COARSE, context=torch.zeros(2, 60, 6), context_grid=FINE)
