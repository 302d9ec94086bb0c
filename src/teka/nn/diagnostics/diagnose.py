"""What is wrong with an attention layer on given tokens, and what to do."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import torch
from torch import Tensor, nn

from teka import functional
from teka.audit.function import check_evaluation_mode
from teka.checks import check_tensor
from teka.functional import (
    Clipped,
    ClippedFeatures,
    FeatureKernel,
    Fourier,
    Kernel,
    Relative,
    Rotary,
)
from teka.functional.attention import EstimatorReport
from teka.functional.backends import Cost
from teka.functional.dispatch import select_backend
from teka.functional.kernels.base import mask_features
from teka.functional.plan import Plan
from teka.functional.positions import Positions
from teka.grid import Grid
from teka.nn.attention import Attention
from teka.nn.diagnostics.equivariance import Excerpt, LayerShift, shift_findings
from teka.nn.diagnostics.explain import record_calls
from teka.nn.diagnostics.report import (
    Diagnosis,
    EstimatorFindings,
    GroupFindings,
    LayerReports,
    SizeFindings,
    advise,
)
from teka.nn.diagnostics.warnings import times_the_values
from teka.nn.features import RandomFeatures
from teka.nn.heads import HeadGroup, pair_name
from teka.precision import widest_dtype

# Every pair of at most so many tokens of a sample is computed, and samples of so many tokens in all are measured.
MEASURED_TOKENS = 1024
MEASURED_IN_ALL = 4096
GAIN_KEYS = 512  # weights of so many keys are held at a time
GAIN_ROUNDING = 1e-6  # how far above 1 rounding takes the gain of a mean


@overload
def diagnose(  # pyright: ignore[reportOverlappingOverload]
    layer: Attention,
    tokens: Tensor,
    grid: Grid | None = None,
    *,
    num_prefix_tokens: int = 0,
    key_mask: Tensor | None = None,
    positions: Tensor | None = None,
    shifts: Sequence[LayerShift] | None = None,
) -> Diagnosis: ...


@overload
def diagnose(
    layer: nn.Module, *inputs: object, shifts: Sequence[LayerShift] | None = None, **keywords: Any
) -> LayerReports[Diagnosis]: ...


def diagnose(
    layer: nn.Module, *inputs: Any, shifts: Sequence[LayerShift] | None = None, **keywords: Any
) -> Diagnosis | LayerReports[Diagnosis]:
    """Measure how well an attention layer, or every attention layer of a model, works on given inputs.

    The report contains:

    - the errors of random features against the kernels that they estimate, and whether the output
      has collapsed to the mean of the values;
    - the sizes of the outputs, and the room that float16 leaves;
    - the rounding differences of all backends;
    - the changes of the output under shifts;
    - recommendations.

    A copy of the layer computes in float64, so that the layer stays as it is. Nothing is random.
    Long inputs are measured on their first samples and on a block of their tokens.

    Args:
        layer: An `Attention`, or a block or model that contains some.
        inputs: For an `Attention` its `tokens` and `grid`, as in `Attention.forward`. For another
            module the inputs of a call. The call is run, and each layer is diagnosed on its inputs
            of its first call.
        shifts: Shifts to measure, in cells on a grid and else in physical units.
        keywords: For an `Attention`, `num_prefix_tokens`, `key_mask` and `positions`. For another
            module, keyword arguments of the call.

    Raises:
        ValueError: A model in training mode or without attention layers, or inputs that do not fit.

    >>> import torch, teka
    >>> block = teka.nn.TransformerBlock(16, 2).eval()
    >>> diagnoses = teka.diagnose(block, torch.randn(1, 12, 16), teka.Grid((3, 4)))
    >>> diagnoses["attention"].collapsed
    False
    """
    if isinstance(layer, Attention):
        return _diagnose_layer(layer, *inputs, shifts=shifts, **keywords)
    reports: LayerReports[Diagnosis] = LayerReports()
    for name, call in record_calls(layer, inputs, keywords, reports.skipped).items():
        reports[name] = _diagnose_layer(
            call.layer,
            call.tokens,
            call.grid,
            num_prefix_tokens=call.num_prefix_tokens,
            key_mask=call.key_mask,
            positions=call.positions,
            shifts=shifts,
        )
    return reports


def _diagnose_layer(
    layer: Attention,
    tokens: Tensor,
    grid: Grid | None = None,
    *,
    num_prefix_tokens: int = 0,
    key_mask: Tensor | None = None,
    positions: Tensor | None = None,
    shifts: Sequence[LayerShift] | None = None,
) -> Diagnosis:
    if layer.dropout.p > 0:  # without it a layer computes the same in training
        check_evaluation_mode("layer", layer)
    check_tensor("tokens", tokens, "samples", "tokens", layer.dim)
    if positions is None:
        grid, num_prefix_tokens = layer.present_places(grid, num_prefix_tokens)
    with torch.no_grad():
        twin = copy.deepcopy(layer)
        if widest_dtype(tokens.device) != torch.float64:
            twin, tokens = twin.cpu(), tokens.cpu()
            key_mask, positions = (
                None if one is None else one.cpu() for one in (key_mask, positions)
            )
        twin.warns_of_large_output = False  # what a warning would say is found here anyway
        for module in twin.modules():
            if isinstance(module, RandomFeatures):
                module.is_unchecked = False
        twin(tokens, grid, key_mask, num_prefix_tokens, positions=positions)
        where = Positions(grid, positions, num_prefix_tokens=num_prefix_tokens)
        whole = Excerpt(tokens.detach(), where, key_mask)
        num_measured = min(whole.num_placed, MEASURED_TOKENS)
        part = whole.at_most(num_measured, max(1, MEASURED_IN_ALL // max(1, num_measured)))
        groups = tuple(_group_findings(twin, group, whole, part) for group in twin.head_groups())
        largest = _largest_numbers(twin, groups, part)
        moved = whole.at_most(whole.num_placed, max(1, MEASURED_IN_ALL // tokens.shape[1]))
        shift = shift_findings(twin, moved, shifts)
    dtype = layer.output.weight.dtype
    return Diagnosis(
        dtype=str(dtype).removeprefix("torch."),
        num_samples=tokens.shape[0],
        num_tokens=tokens.shape[1],
        measured=_describe(whole, part),
        groups=groups,
        largest=largest,
        shift=shift,
        advice=advise(
            groups, largest, shift, dtype=dtype, num_tokens=tokens.shape[1], dim_head=layer.dim_head
        ),
    )


def _describe(whole: Excerpt, part: Excerpt) -> str:
    if part.tokens.shape == whole.tokens.shape:
        return "measured on all of them"
    samples, num_tokens, _ = part.tokens.shape
    block_grid, grid = part.positions.grid, whole.positions.grid
    block = (
        f", a block {block_grid.shape} of {grid.shape}"
        if block_grid and grid and block_grid != grid
        else ""
    )
    return f"measured on {samples} of the samples and {num_tokens:,} of the tokens{block}"


@dataclass(frozen=True)
class _Heads:
    """Queries, keys and values of some heads of an excerpt, and attention among them."""

    query: Tensor
    key: Tensor
    value: Tensor
    excerpt: Excerpt
    is_causal: bool

    def attend(
        self,
        kernel: Kernel,
        relative: Relative | None,
        backend: str = "dense",
        dtype: torch.dtype = torch.float64,
    ) -> Tensor:
        """Output of all queries in float64, (B, H, L, d), computed in a dtype."""
        query, key, value = (tensor.to(dtype) for tensor in (self.query, self.key, self.value))
        sizes = {"heads": query.shape[1], "dim": query.shape[-1]}
        plan = Plan.of_kernels(
            kernel, relative, self.excerpt.positions, **sizes, is_causal=self.is_causal
        )
        return plan.attend(
            query, key, value, backend=backend, key_mask=self.excerpt.key_mask, query_mask=None
        ).double()

    def rows(self, vectors: Tensor) -> Tensor:
        """Those of the kept tokens, (H, rows, d), of vectors (B, H, L, d)."""
        return vectors.transpose(0, 1)[:, self.excerpt.kept]

    def norms(self, vectors: Tensor) -> tuple[float, ...]:
        """Mean norm of the kept vectors of each head."""
        return tuple(self.rows(vectors.double()).norm(dim=-1).mean(dim=-1).tolist())

    def gains(self, kernel: Kernel, relative: Relative | None) -> Tensor:
        """Σ_j |w_ij| / D_i of the kept queries, (H, rows): a weight is the output where one key has the value 1."""
        batch, heads, num_keys, _ = self.value.shape
        each_key = torch.eye(num_keys, dtype=torch.float64, device=self.value.device).expand(
            batch, heads, -1, -1
        )
        outputs = (
            replace(self, value=some).attend(kernel, relative)
            for some in each_key.split(GAIN_KEYS, dim=-1)
        )
        return self.rows(torch.stack([one.norm(1, dim=-1) for one in outputs]).sum(dim=0))


def _group_findings(
    layer: Attention, group: HeadGroup, whole: Excerpt, part: Excerpt
) -> GroupFindings:
    query, key, value = layer.project(part.tokens, key_mask=part.key_mask)
    heads = _Heads(*group.part_of(query, key, value, part.tokens.shape[1]), part, layer.causal)
    kernel, relative = group.kernel, group.relative
    outputs = heads.attend(kernel, relative)
    exact, mean = heads.rows(outputs), heads.rows(heads.attend(functional.Constant(), None, "auto"))
    scatter = (heads.rows(heads.value.double()) - mean).flatten(1).norm(dim=-1)
    variation = (exact - mean).flatten(1).norm(dim=-1) / scatter.clamp_min(
        torch.finfo(torch.float64).tiny
    )
    kept = part.kept.double()
    seen_keys = (
        kept.cumsum(dim=1) if layer.causal else kept.sum(dim=1, keepdim=True).expand_as(kept)
    )
    still, waves = _still_waves(relative, whole)
    return GroupFindings(
        name=group.name,
        kernel=kernel.name,
        relative=None if relative is None else relative.name,
        first_head=group.heads.start,
        num_heads=group.num_heads,
        backend=select_backend(
            group.backend, _costs(group, whole), layer.output.weight.device.type
        ),
        size=_size_findings(heads, group, outputs),
        estimator=_estimator_findings(heads, kernel, relative, exact, mean),
        variation=tuple(variation.tolist()),
        unevenness=tuple((variation * float(seen_keys[part.kept].mean()) ** 0.5).tolist()),
        rounding=_rounding(layer, group, heads),
        query_norm=None if group.queries is None else heads.norms(heads.query),
        key_norm=heads.norms(heads.key) if kernel.uses_content else None,
        num_still_waves=still,
        num_waves=waves,
    )


def _size_findings(heads: _Heads, group: HeadGroup, outputs: Tensor) -> SizeFindings:
    outputs, values = (
        mask_features(one, heads.excerpt.key_mask) for one in (outputs, heads.value.double())
    )
    gains = heads.gains(group.kernel, group.relative)
    return SizeFindings(
        bound=group.bound,
        times_the_values=float(times_the_values(outputs, values).max()),
        largest_gain=float(gains.max()),
        share_above_1=float((gains > 1 + GAIN_ROUNDING).double().mean()),
        largest_output=float(outputs.abs().max()),
    )


def _largest_numbers(
    layer: Attention, groups: tuple[GroupFindings, ...], part: Excerpt
) -> dict[str, float]:
    """Largest |number| of what the layer computes in its own dtype; between these it is at least float32."""
    exact = copy.deepcopy(layer).double()
    tokens = part.tokens.double().masked_fill(~part.kept[..., None], 0.0)
    maps = {"queries": exact.query, "keys": exact.key, "values": exact.value}
    largest = {
        name: float(linear(tokens).abs().max())
        for name, linear in maps.items()
        if linear is not None
    }
    largest["heads' outputs"] = max(group.size.largest_output for group in groups)
    where = part.positions
    output = exact(
        tokens, where.grid, part.key_mask, where.num_prefix_tokens, positions=where.points
    )
    return {**largest, "layer's outputs": float(output[part.kept].abs().max())}


def _estimator_findings(
    heads: _Heads, kernel: Kernel, relative: Relative | None, estimate: Tensor, mean: Tensor
) -> EstimatorFindings | None:
    """Errors of features against what they stand for, or None where they stand for themselves."""
    if isinstance(kernel, FeatureKernel) and kernel.estimates_softmax:
        draws, true_kernel, true_relative = (
            getattr(kernel, "projection", None),
            functional.Softmax(),
            relative,
        )
        if isinstance(relative, Rotary):
            # Rotated features stand for no other kernel, but what they are before the rotation does.
            estimate, true_relative = heads.rows(heads.attend(kernel, None)), None
    elif isinstance(relative, ClippedFeatures):
        draws, true_kernel = relative.projection, kernel
        true_relative = Clipped(relative.distance_embedding, relative.ring_width)
    else:
        return None
    assert isinstance(draws, Tensor)
    exact = heads.rows(heads.attend(true_kernel, true_relative))
    lengths = draws.double().square().sum(dim=-1)
    return EstimatorFindings(
        truth=pair_name(true_kernel, true_relative),
        num_features=draws.shape[0],
        is_biased=bool((lengths - draws.shape[1]).abs().max() < 1e-3 * draws.shape[1]),
        total=EstimatorReport.from_outputs(estimate, exact, mean),
        by_head=tuple(
            EstimatorReport.from_outputs(*one) for one in zip(estimate, exact, mean, strict=True)
        ),
    )


def _rounding(layer: Attention, group: HeadGroup, heads: _Heads) -> dict[str, float]:
    """Difference of every other backend from the dense one, in the layer's dtype."""
    outputs = {
        name: heads.rows(
            heads.attend(group.kernel, group.relative, name, layer.output.weight.dtype)
        )
        for name in dict.fromkeys(("dense", *_costs(group, heads.excerpt)))
    }
    dense = outputs.pop("dense")
    size = dense.norm().clamp_min(torch.finfo(torch.float64).tiny)
    return {name: float((output - dense).norm() / size) for name, output in outputs.items()}


def _costs(group: HeadGroup, excerpt: Excerpt) -> dict[str, Cost]:
    batch, num_tokens, _ = excerpt.tokens.shape
    return group.costs_at(excerpt.positions, num_tokens, num_tokens, batch=batch)


def _still_waves(relative: Relative | None, excerpt: Excerpt) -> tuple[int, int]:
    """How many waves a periodic grid rounds to frequency 0, and how many waves it rounds."""
    grid = excerpt.positions.grid
    if not isinstance(relative, Fourier | Rotary) or grid is None or not any(grid.periodic):
        return 0, 0
    rounded = relative.for_positions(excerpt.positions)
    assert isinstance(rounded, Fourier | Rotary)
    still = (rounded.frequency == 0).all(dim=-1) & (relative.frequency != 0).any(dim=-1)
    return int(still.sum()), still.numel()
