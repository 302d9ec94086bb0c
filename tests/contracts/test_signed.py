"""Custom kernels that declare whether their weights may be negative."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from teka import Grid
from teka.functional import FeatureKernel, attention, decode
from teka.functional.attention_plan import AttentionPlan
from teka.functional.kernels.content_kernel import mask_features
from teka.functional.kernels.rectified import SharedFeatureMapKernel
from teka.functional.positions import Positions
from tests.contracts.cases import (
    DEVICE,
    RELATIVE_NAMES,
    build_relative,
    draw_inputs,
    draw_mask,
    reference_attention,
    relative_error,
    with_leaves,
)

DIM, SCALE = 6, 0.4
WITHOUT_SOFTMAX = [name for name in RELATIVE_NAMES if name != "rotation_joint"]


@dataclass(frozen=True)
class Sines(FeatureKernel):
    """φ_r(x) = sin(r x_0 + x_1) + 0.3."""

    name: ClassVar[str] = "sines"
    nonnegative: ClassVar[bool] = False

    def num_features(self, dim: int) -> int:
        return 7

    def query_features(
        self, query: Float[Tensor, "batch heads queries dim"], *, scale: float
    ) -> Float[Tensor, "batch heads queries features"]:
        return torch.sin(torch.arange(7).to(query) * query[..., :1] + query[..., 1:2]) + 0.3

    def key_features(
        self,
        key: Float[Tensor, "batch heads keys dim"],
        *,
        scale: float,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
    ) -> Float[Tensor, "batch heads keys features"]:
        return mask_features(self.query_features(key, scale=scale), key_mask)


@dataclass(frozen=True)
class Shifted(SharedFeatureMapKernel):
    """φ(x) = x + 0.5."""

    name: ClassVar[str] = "shifted"
    nonnegative: ClassVar[bool] = False

    def num_features(self, dim: int) -> int:
        return dim

    def feature_map(
        self, vectors: Float[Tensor, "*batch dim"], *, scale: float
    ) -> Float[Tensor, "*batch features"]:
        return vectors + 0.5


@dataclass(frozen=True)
class Raised(SharedFeatureMapKernel):
    """φ(x) = x² + 0.5. No feature is 0, not even of masked tokens."""

    name: ClassVar[str] = "raised"
    nonnegative: ClassVar[bool] = True

    def num_features(self, dim: int) -> int:
        return dim

    def feature_map(
        self, vectors: Float[Tensor, "*batch dim"], *, scale: float
    ) -> Float[Tensor, "*batch features"]:
        return vectors.square() + 0.5


class DeclaredNonnegative(Sines):
    """A signed kernel that is declared to be nonnegative."""

    nonnegative: ClassVar[bool] = True


def changes(kernel: FeatureKernel, name: str | None, *, is_causal: bool) -> dict[str, float]:
    """Return, for every backend, the largest error of the output and the gradients."""
    grid, first = (Grid(13), 0) if is_causal else (Grid((5, 7)), 1)
    num_tokens = first + grid.num_tokens
    inputs = [tensor.requires_grad_() for tensor in draw_inputs(num_tokens, dim=DIM, scale=1.0)]
    mask = draw_mask(2, num_tokens)
    relative = build_relative(
        name, heads=3, dim=DIM, num_axes=grid.num_axes, kernel=kernel, max_distance=3
    )
    relative = None if relative is None else relative.adapt_to_kernel(kernel)
    positions = Positions(grid, num_prefix_tokens=first)

    def with_gradients(output: Tensor) -> list[Tensor]:
        cotangent = torch.cos(
            torch.arange(output.numel(), dtype=output.dtype, device=DEVICE)
        ).reshape(output.shape)
        return [output.detach(), *torch.autograd.grad(output, inputs, cotangent)]

    keep = mask[:, None]
    keep = keep & mask.new_ones(num_tokens, num_tokens).tril() if is_causal else keep
    reference = with_gradients(
        reference_attention(inputs, kernel, relative, positions, scale=SCALE, keep=keep)
    )
    plan = AttentionPlan(kernel, relative, positions, 1.0, is_causal)
    costs = plan.estimate_costs(
        heads=1, num_queries=num_tokens, num_keys=num_tokens, dim=DIM, dim_value=4, batch=1
    )
    results = {}
    for backend in costs:
        output = attention(
            *inputs,
            kernel=kernel,
            relative=relative,
            grid=grid,
            key_mask=mask,
            is_causal=is_causal,
            scale=SCALE,
            backend=backend,
            num_prefix_tokens=first,
        )
        results[backend] = max(map(relative_error, with_gradients(output), reference))
    return results


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kernel", [Sines(), Shifted(), Raised()], ids=lambda kernel: kernel.name)
def test_backends_equal_the_equation(kernel: FeatureKernel, is_causal: bool):
    for relative in WITHOUT_SOFTMAX:
        assert max(changes(kernel, relative, is_causal=is_causal).values()) < 1e-10, relative


def test_masked_tokens_do_not_affect_signed_features():
    inputs, mask = (
        [tensor.requires_grad_() for tensor in draw_inputs(35, dim=DIM)],
        draw_mask(2, 35),
    )
    drawn = build_relative("fourier", heads=3, dim=DIM, num_axes=2)
    assert drawn is not None
    relative, leaves = with_leaves(drawn)
    results = []
    for backend in ("dense", "linear"):
        options = {
            "kernel": Raised(),
            "relative": relative,
            "grid": Grid((5, 7)),
            "backend": backend,
        }
        output = attention(*inputs, **options, key_mask=mask)
        results.append(torch.autograd.grad(output.sin().sum(), [*inputs, *leaves.values()]))
    assert max(map(relative_error, *results)) < 1e-10


@pytest.mark.parametrize("relative", ["rotation", "clipped"])
def test_wrong_sign_declaration_is_found(relative: str):
    assert max(changes(DeclaredNonnegative(), relative, is_causal=False).values()) > 0.01


@pytest.mark.parametrize("kernel", [Sines(), Shifted(), Raised()], ids=lambda kernel: kernel.name)
def test_decoding_equals_the_forward_pass(kernel: FeatureKernel):
    inputs = draw_inputs(13, dim=DIM, scale=1.0)
    for relative in (None, "clipped", "fourier", "rotary"):
        built = build_relative(
            relative, heads=3, dim=DIM, num_axes=1, kernel=kernel, max_distance=3
        )
        grid = None if relative is None else Grid(13)
        expected = attention(
            *inputs, kernel=kernel, relative=built, grid=grid, is_causal=True, backend="dense"
        )
        outputs, state = [], None
        for query, key, value in zip(*(tensor.split(1, dim=2) for tensor in inputs), strict=True):
            output, state = decode(query, key, value, state, kernel=kernel, relative=built)
            outputs.append(output)
        assert relative_error(torch.cat(outputs, dim=2), expected) < 1e-10, relative
