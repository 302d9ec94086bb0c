import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from teka import Grid
from teka.functional import ContentKernel, Elu, PositiveFeatures, attention
from teka.nn import Attention, TransformerBlock
from tests.contracts.cases import (
    DEVICE,
    PAIRS,
    PAIRS_WITH_POSITIONS,
    SUPPORTED_CASES,
    Case,
    build_kernel,
    build_relative,
    causal_backends,
    draw_inputs,
    draw_mask,
    is_signed,
    is_weighted_mean,
    one_axis_backends,
    parametrize_by_kernel,
    relative_error,
)

TOLERANCE = 1e-10
GRID = Grid((3, 5))
NUM_TOKENS = 1 + GRID.num_tokens  # with one prefix token


def attend(
    kernel: str | ContentKernel,
    relative: str | None,
    backend: str,
    inputs: list[Tensor],
    mask: Tensor | None,
):
    query, key, value = inputs
    return attention(
        query,
        key,
        value,
        kernel=kernel,
        relative=relative,
        grid=GRID,
        key_mask=mask,
        backend=backend,
        num_prefix_tokens=1,
    )


@parametrize_by_kernel(SUPPORTED_CASES)
def test_output_of_a_fully_masked_sample_is_zero(case: Case):
    inputs = [tensor.requires_grad_() for tensor in draw_inputs(NUM_TOKENS)]
    mask = torch.ones(2, NUM_TOKENS, dtype=torch.bool, device=DEVICE)
    mask[1] = False
    output = attend(case.kernel, case.relative, case.backend, inputs, mask)
    assert output.isfinite().all()
    assert output[0].any()
    assert not output[1].any()
    gradients = torch.autograd.grad(output.sin().sum(), inputs, allow_unused=True)
    assert all(gradient is None or gradient.isfinite().all() for gradient in gradients)


def with_other_padding(inputs: list[Tensor], mask: Tensor, factor: float) -> list[Tensor]:
    """Replace masked keys and values by other values."""
    query, key, value = inputs
    _, other_key, other_value = draw_inputs(NUM_TOKENS, seed=5, scale=factor)
    keep = mask[:, None, :, None]
    return [query, torch.where(keep, key, other_key), torch.where(keep, value, other_value)]


@parametrize_by_kernel(SUPPORTED_CASES, factor=[100.0, math.nan])
def test_masked_keys_change_no_output_and_no_gradient(case: Case, factor: float):
    inputs, mask = draw_inputs(NUM_TOKENS), draw_mask(2, NUM_TOKENS)
    results = []
    for tensors in (inputs, with_other_padding(inputs, mask, factor)):
        leaves = [tensor.requires_grad_() for tensor in tensors]
        output = attend(case.kernel, case.relative, case.backend, leaves, mask)
        results.append(
            [output, *torch.autograd.grad(output.square().sum(), leaves, materialize_grads=True)]
        )
    for padded, plain in zip(results[1], results[0], strict=True):
        assert relative_error(padded, plain) <= TOLERANCE


@pytest.mark.parametrize("kernel", ["squared_relu", "optimal", "softmax"])
@pytest.mark.parametrize("ragged", [True, False], ids=["by lengths", "by a mask"])
def test_nan_padding_changes_nothing(kernel: str, ragged: bool):
    torch.manual_seed(0)
    block = TransformerBlock(8, 2, kernel=kernel).double().to(DEVICE)
    tokens, lengths = (
        torch.randn(2, 15, 8, dtype=torch.float64).to(DEVICE),
        torch.tensor([11, 4]).to(DEVICE),
    )
    keep = torch.arange(15, device=DEVICE) < lengths[:, None]
    results = []
    for padding in (1.0, math.nan):
        padded_tokens = tokens.masked_fill(~keep[..., None], padding)
        if ragged:
            output = block(padded_tokens, GRID, lengths=lengths)
            parameters = dict(block.named_parameters())
        else:  # masked tokens are still queries, so only keys and values are checked
            output = block.attention(padded_tokens, GRID, keep)
            parameters = {
                name: parameter
                for name, parameter in block.attention.named_parameters()
                if name[:3] in ("key", "val")
            }
        loss = output[keep].square().sum()
        results.append([output[keep], *torch.autograd.grad(loss, list(parameters.values()))])
    for padded, plain in zip(*results, strict=True):
        assert relative_error(padded, plain) <= TOLERANCE


def test_fitted_kernels_ignore_padding():
    outputs = []
    for num_tokens in (8, 12, 32):
        inputs = [
            torch.cat([tensor[:, :, :8], other[:, :, 8:]], dim=2)
            for tensor, other in zip(
                draw_inputs(32), draw_inputs(32, seed=1, scale=3.0), strict=True
            )
        ]
        mask = (torch.arange(num_tokens, device=DEVICE) < 8).expand(2, -1)
        outputs.append(
            attention(
                *(tensor[:, :, :num_tokens] for tensor in inputs), kernel="optimal", key_mask=mask
            )[:, :, :8]
        )
    assert relative_error(outputs[1], outputs[0]) <= TOLERANCE
    assert relative_error(outputs[2], outputs[0]) <= TOLERANCE


@parametrize_by_kernel(PAIRS_WITH_POSITIONS)
def test_masking_a_key_equals_removing_it(pair: Case):
    # Tokens have positions instead of a grid, so that tokens can be removed.
    (query, key, value), generator = draw_inputs(GRID.num_tokens), torch.manual_seed(2)
    keep = (torch.rand(GRID.num_tokens, generator=generator) < 0.6).to(DEVICE)
    positions = GRID.positions(dtype=torch.float64, device=DEVICE)
    relative = build_relative(pair.relative, kernel=pair.kernel, heads=3, dim=5, num_axes=2)
    options: dict[str, Any] = {
        "kernel": build_kernel(pair.kernel, relative, 5),
        "relative": relative,
    }
    mask = keep.expand(2, -1)
    # Features of long keys are tiny compared with those of masked keys, which are zero vectors.
    for factor in (1.0,) if is_signed(pair) else (1.0, 80.0):
        inputs = (query, factor * key, value)
        # The queries are masked too, because a kernel may be fitted to all queries.
        masked = attention(*inputs, **options, positions=positions, key_mask=mask, query_mask=mask)
        assert not masked[:, :, ~keep].any()
        few = [tensor[:, :, keep] for tensor in inputs]
        without = attention(*few, **options, positions=positions[keep])
        assert relative_error(masked[:, :, keep], without) <= TOLERANCE, factor
        for backend in causal_backends(pair.kernel, pair.relative) - one_axis_backends(
            pair.relative
        ):
            causal = {**options, "is_causal": True, "backend": backend}
            masked = attention(*inputs, **causal, positions=positions, key_mask=mask)
            without = attention(*few, **causal, positions=positions[keep])
            assert relative_error(masked[:, :, keep], without) <= TOLERANCE, (factor, backend)


@parametrize_by_kernel([case for case in SUPPORTED_CASES if is_weighted_mean(case.kernel)])
def test_masking_all_grid_keys_leaves_the_prefix(case: Case):
    inputs, mask = (
        draw_inputs(NUM_TOKENS),
        torch.zeros(2, NUM_TOKENS, dtype=torch.bool, device=DEVICE),
    )
    mask[:, 0] = True
    output = attend(case.kernel, case.relative, case.backend, inputs, mask)
    assert relative_error(output, inputs[2][:, :, :1].expand_as(output)) <= TOLERANCE


@parametrize_by_kernel(SUPPORTED_CASES)
def test_samples_are_independent(case: Case):
    inputs, mask = draw_inputs(NUM_TOKENS), draw_mask(2, NUM_TOKENS)
    for factor in (1.0, 100.0):
        batch = [torch.cat([tensor[:1], factor * tensor[1:]]) for tensor in inputs]
        together = attend(case.kernel, case.relative, case.backend, batch, mask)
        alone = attend(
            case.kernel, case.relative, case.backend, [tensor[:1] for tensor in inputs], mask[:1]
        )
        assert relative_error(together[:1], alone) <= TOLERANCE


@parametrize_by_kernel(PAIRS)
def test_evaluation_is_deterministic(pair: Case):
    torch.manual_seed(0)
    layer = (
        Attention(8, 2, kernel=pair.kernel, relative=pair.relative, dropout=0.5).eval().to(DEVICE)
    )
    tokens, mask = torch.randn(2, GRID.num_tokens, 8).to(DEVICE), draw_mask(2, GRID.num_tokens)
    assert torch.equal(layer(tokens, GRID, mask), layer(tokens, GRID, mask))


@dataclass(frozen=True)
class DenominatorOfAllKeys(Elu):
    """A faulty version that does not mask the features."""

    name: ClassVar[str] = "denominator_of_all_keys"

    def key_features(
        self,
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
    ) -> Float[Tensor, "batch heads keys features"]:
        return super().key_features(key, scale=scale)


def test_an_unmasked_denominator_is_found():
    query, key, value = draw_inputs(NUM_TOKENS)
    mask = draw_mask(2, NUM_TOKENS)
    masked_value = value * mask[:, None, :, None]
    broken = attend(DenominatorOfAllKeys(), None, "linear", [query, key, masked_value], mask)
    is_correct = attend("elu", None, "linear", [query, key, value], mask)
    assert relative_error(broken, is_correct) > 0.1


@dataclass(frozen=True)
class MaximumOverTheBatch(PositiveFeatures):
    """A faulty version that subtracts the maximum over batch, heads and tokens."""

    name: ClassVar[str] = "maximum_over_the_batch"

    def key_features(
        self,
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
    ) -> Float[Tensor, "batch heads keys features"]:
        exponent = self.key_exponent(key, scale=scale)
        return torch.exp(exponent - exponent.amax()) + 1e-4


def test_a_maximum_over_the_batch_is_found():
    is_correct = build_kernel("positive", None, 5)
    assert isinstance(is_correct, PositiveFeatures)
    inputs = draw_inputs(NUM_TOKENS, scale=1.5)
    batch = [tensor.clone() for tensor in inputs]
    # The keys of the other sample maximize the exponent wᵀx − ‖x‖²/2.
    batch[1][1] = 5**0.25 * is_correct.projection[is_correct.projection.norm(dim=-1).argmax()]
    changes = []
    for kernel in (is_correct, MaximumOverTheBatch(**dataclasses.asdict(is_correct))):
        together = attend(kernel, None, "linear", batch, None)[:1]
        alone = attend(kernel, None, "linear", [tensor[:1] for tensor in inputs], None)
        changes.append(relative_error(together, alone))
    assert changes[0] <= TOLERANCE
    assert changes[1] > 1e-3
