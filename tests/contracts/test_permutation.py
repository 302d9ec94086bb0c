import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator

from teka import Grid
from teka.functional import attention
from teka.nn import AttentionPool
from tests.contracts.cases import (
    DEVICE,
    PAIRS,
    PAIRS_WITH_POSITIONS,
    SUPPORTED_CASES,
    Case,
    build_kernel,
    build_relative,
    draw_inputs,
    draw_mask,
    parametrize_by_kernel,
    relative_error,
)

TOLERANCE = 1e-10
NUM_TOKENS = 11


@parametrize_by_kernel([case for case in SUPPORTED_CASES if case.relative is None])
@settings(max_examples=4)
@given(order=st.permutations(range(NUM_TOKENS)))
def test_permuting_tokens_without_positions_permutes_outputs(case: Case, order: list[int]):
    inputs, mask = draw_inputs(NUM_TOKENS), draw_mask(2, NUM_TOKENS)
    before = attention(*inputs, kernel=case.kernel, key_mask=mask, backend=case.backend)
    shuffled = [tensor[:, :, order] for tensor in inputs]
    after = attention(*shuffled, kernel=case.kernel, key_mask=mask[:, order], backend=case.backend)
    assert relative_error(after, before[:, :, order]) <= TOLERANCE


@parametrize_by_kernel(PAIRS_WITH_POSITIONS)
@settings(max_examples=4)
@given(order=st.permutations(range(NUM_TOKENS)))
def test_permuting_tokens_and_positions_permutes_outputs(pair: Case, order: list[int]):
    inputs, mask = draw_inputs(NUM_TOKENS), draw_mask(2, NUM_TOKENS)
    positions = 5 * torch.rand(
        2, NUM_TOKENS, 3, dtype=torch.float64, generator=Generator().manual_seed(1)
    ).to(DEVICE)
    relative = build_relative(pair.relative, kernel=pair.kernel, heads=3, dim=5, num_axes=3)
    kernel = build_kernel(pair.kernel, relative, 5)
    before = attention(
        *inputs, kernel=kernel, relative=relative, positions=positions, key_mask=mask
    )
    after = attention(
        *(tensor[:, :, order] for tensor in inputs),
        kernel=kernel,
        relative=relative,
        positions=positions[:, order],
        key_mask=mask[:, order],
    )
    assert relative_error(after, before[:, :, order]) <= TOLERANCE


@parametrize_by_kernel([pair for pair in PAIRS if pair.relative is not None])
def test_token_order_matters_on_a_grid(pair: Case):
    inputs = draw_inputs(15)
    before = attention(*inputs, kernel=pair.kernel, relative=pair.relative, grid=Grid((3, 5)))
    flipped = [tensor.flip(2).roll(4, 2) for tensor in inputs]
    after = attention(*flipped, kernel=pair.kernel, relative=pair.relative, grid=Grid((3, 5)))
    assert relative_error(after, before.flip(2).roll(4, 2)) > 1e-3


@given(order=st.permutations(range(NUM_TOKENS)), num_queries=st.integers(1, 3))
def test_learned_query_ignores_token_order(order: list[int], num_queries: int):
    torch.manual_seed(0)
    pool = AttentionPool(6, 2, num_queries=num_queries).double().to(DEVICE)
    tokens, mask = (
        torch.randn(2, NUM_TOKENS, 6, dtype=torch.float64).to(DEVICE),
        draw_mask(2, NUM_TOKENS),
    )
    assert relative_error(pool(tokens[:, order], mask[:, order]), pool(tokens, mask)) <= TOLERANCE
