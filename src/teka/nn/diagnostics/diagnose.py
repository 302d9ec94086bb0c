"""Diagnosis of the accuracy and numerical safety of attention layers."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, overload

import torch
from torch import Tensor, nn

from teka.checks import check_evaluation_mode, check_tensor
from teka.functional import (
    ClippedDistanceBias,
    ClippedDistanceFeatures,
    Constant,
    ContentKernel,
    FeatureKernel,
    Fourier,
    RelativeKernel,
    Rotary,
    Softmax,
    attention,
)
from teka.functional.backends.costs import Cost, select_backend
from teka.functional.positions import Positions
from teka.grid import Grid, GridLike
from teka.nn.attention import Attention
from teka.nn.diagnostics.equivariance import LayerInputs, LayerShift, measure_shift_errors
from teka.nn.diagnostics.explain import collect_layer_reports
from teka.nn.diagnostics.report import (
    ApproximationErrors,
    Diagnosis,
    HeadMeasurements,
    LayerReports,
    RandomFeatureErrors,
    find_layer_problems,
    float16_headroom,
)
from teka.nn.head_groups import HeadGroup, join_kernel_names
from teka.precision import widest_dtype

# Largest sizes of the measured part of the inputs, because all pairs of its tokens are computed.
MAX_TOKENS = 1024
MAX_SAMPLES = 4
# Tolerance for rounding errors of gains that are exactly 1.
GAIN_ROUNDING = 1e-6
TINY = torch.finfo(torch.float64).tiny


@overload
def diagnose(  # pyright: ignore[reportOverlappingOverload]
    layer: Attention, *inputs: Any, **keywords: Any
) -> Diagnosis: ...


@overload
def diagnose(layer: nn.Module, *inputs: Any, **keywords: Any) -> LayerReports[Diagnosis]: ...


def diagnose(
    layer: nn.Module, *inputs: Any, shifts: Sequence[LayerShift] | None = None, **keywords: Any
) -> Diagnosis | LayerReports[Diagnosis]:
    """Measure the accuracy and the numerical safety of attention layers on your inputs.

    The report of a layer contains:

    - the errors of random features, and whether the features have collapsed, so that the output is
      nearly the mean of the values for every query;
    - the largest values, and how much they could grow before float16 overflows;
    - the differences between the results of all attention algorithms (backends), which are rounding
      errors;
    - the changes of the output when the tokens are shifted;
    - the problems that these measurements show, each with a recommendation.

    The layer does not change, and the results are deterministic. If the inputs are large, only some
    samples and a block of the tokens are measured.

    Args:
        layer: An `Attention`, or a block or model that contains some.
        inputs: For an `Attention`, its `tokens` and `grid`, as in `Attention.forward`. For another
            module, the inputs of a call. Each layer is diagnosed with the inputs of its first call.
        shifts: Shifts to measure, in cells of the grid or, without a grid, in physical units. By
            default, two shifts are chosen.
        keywords: For an `Attention`, `num_prefix_tokens`, `key_mask` and `positions`. For another
            module, keyword arguments of the call.

    Raises:
        ValueError: The model is in training mode or has no attention layer, or the inputs do not
            fit it.

    >>> import torch, teka
    >>> block = teka.nn.TransformerBlock(16, 2).eval()
    >>> diagnoses = teka.diagnose(block, torch.randn(1, 12, 16), teka.Grid((3, 4)))
    >>> diagnoses["attention"].findings
    ()
    """
    if isinstance(layer, Attention):
        return _diagnose_layer(layer, *inputs, shifts=shifts, **keywords)
    return collect_layer_reports(layer, inputs, keywords, partial(_diagnose_layer, shifts=shifts))


@torch.no_grad()
def _diagnose_layer(
    layer: Attention,
    tokens: Tensor,
    grid: GridLike | None = None,
    *,
    num_prefix_tokens: int = 0,
    key_mask: Tensor | None = None,
    positions: Tensor | None = None,
    shifts: Sequence[LayerShift] | None = None,
) -> Diagnosis:
    if layer.dropout.p > 0:
        check_evaluation_mode("layer", layer)
    check_tensor("tokens", tokens, "samples", "tokens", layer.dim)
    layer(tokens, grid, key_mask, num_prefix_tokens, positions=positions)  # Checks the arguments.
    if positions is None:
        grid, num_prefix_tokens = layer.resolve_grid(grid, num_prefix_tokens)
    assert grid is None or isinstance(grid, Grid)
    device_type = tokens.device.type
    device = tokens.device if widest_dtype(tokens.device) == torch.float64 else torch.device("cpu")
    layer, tokens = copy.deepcopy(layer).to(device), tokens.detach().to(device)
    num_samples, num_tokens, _ = tokens.shape
    if key_mask is None:
        key_mask = tokens.new_ones(num_samples, num_tokens, dtype=torch.bool)
    if positions is not None:
        positions = positions.to(device).expand(num_samples, -1, -1)
    whole = LayerInputs(tokens, grid, key_mask.to(device), num_prefix_tokens, positions)
    measured = whole.crop(MAX_TOKENS, MAX_SAMPLES)
    # Tokens that are dropped may be NaN.
    is_dropped = ~measured.key_mask[..., None]
    measured = replace(measured, tokens=measured.tokens.double().masked_fill(is_dropped, 0.0))
    float64_layer = copy.deepcopy(layer).double()
    dtype = layer.output.weight.dtype
    groups = []
    for group in layer.head_groups():
        backend = select_backend(group.backend, _estimate_group_costs(group, whole), device_type)
        groups.append(_measure_heads(group, float64_layer, measured, whole.grid, backend, dtype))
    largest = {}
    for name in ("query", "key", "value"):
        projection = getattr(float64_layer, name)
        if projection is not None:
            largest[name] = float(projection(measured.tokens).abs().max())
    largest["output of a head"] = max(group.largest_output for group in groups)
    largest["output"] = float(measured.run(float64_layer)[measured.key_mask].abs().max())
    shift = measure_shift_errors(layer, whole.crop(num_tokens, MAX_SAMPLES), shifts)
    return Diagnosis(
        dtype=str(dtype).removeprefix("torch."),
        inputs=str(whole),
        measured=str(measured),
        groups=tuple(groups),
        largest=largest,
        float16_headroom=float16_headroom(largest),
        shift=shift,
        findings=find_layer_problems(groups, largest, shift, dtype=dtype, dim_head=layer.dim_head),
    )


def _measure_heads(
    group: HeadGroup,
    float64_layer: Attention,
    inputs: LayerInputs,
    whole_grid: Grid | None,
    backend: str,
    dtype: torch.dtype,
) -> HeadMeasurements:
    """Measure the accuracy, the output sizes and the rounding errors of a group of attention heads.

    Args:
        group: The heads.
        float64_layer: The layer in float64, which projects the tokens.
        inputs: The measured part of the inputs of the layer, in float64.
        whole_grid: Grid of all tokens, or None.
        backend: Backend that computes the heads for all inputs.
        dtype: Dtype of the layer, whose rounding errors are measured.
    """
    kernel, relative, key_mask = group.kernel, group.relative, inputs.key_mask
    projected = float64_layer.project(inputs.tokens, key_mask=key_mask)
    query, key, value = group.select_heads(*projected, inputs.tokens.shape[1])
    options: dict[str, Any] = {**vars(inputs), "query_mask": key_mask, "is_causal": group.is_causal}
    del options["tokens"]

    def compute_weights(kernel: ContentKernel, relative: RelativeKernel | None) -> Tensor:
        # A weight is the output for values that are 1 at one key and 0 at all others.
        one_hot = torch.eye(key.shape[2], dtype=key.dtype, device=key.device)
        values = one_hot.expand(*key.shape[:2], -1, -1)
        return attention(
            query, key, values, kernel=kernel, relative=relative, backend="dense", **options
        )

    def mean(per_token: Tensor) -> Tensor:
        kept = per_token.masked_fill(~key_mask[:, None], 0.0)
        return kept.sum(dim=(0, 2)) / key_mask.sum()

    weights, equal_weights = compute_weights(kernel, relative), compute_weights(Constant(), None)
    value = value.masked_fill(~key_mask[:, None, :, None], 0.0)
    output = weights @ value
    gains = weights.abs().sum(dim=-1)
    num_keys = (equal_weights > 0).sum(dim=-1)
    variance = mean((weights - equal_weights).square().sum(dim=-1) * num_keys)
    largest_output, largest_value = output.abs().amax(dim=(2, 3)), value.abs().amax(dim=(2, 3))
    in_dtype = [tensor.to(dtype) for tensor in (query, key, value)]
    outputs = {
        name: attention(*in_dtype, kernel=kernel, relative=relative, backend=name, **options)
        for name in _estimate_group_costs(group, inputs)
    }
    dense = outputs.pop("dense").double()
    return HeadMeasurements(
        name=group.name,
        relative=None if relative is None else relative.name,
        heads=tuple(range(group.heads.start, group.heads.stop)),
        backend=backend,
        features=_measure_random_features(
            kernel, relative, compute_weights, weights, equal_weights, value
        ),
        bound=group.output_bound,
        output_ratio=float((largest_output / largest_value.clamp_min(TINY)).max()),
        largest_output=float(largest_output.max()),
        largest_gain=float(gains.max()),
        share_of_gains_above_1=float(mean((gains > 1 + GAIN_ROUNDING).double()).mean()),
        unevenness=tuple(variance.sqrt().tolist()),
        query_norm=None if group.queries is None else tuple(mean(query.norm(dim=-1)).tolist()),
        key_norm=tuple(mean(key.norm(dim=-1)).tolist()) if kernel.uses_content else None,
        rounding={
            name: float((fast.double() - dense).norm() / dense.norm().clamp_min(TINY))
            for name, fast in outputs.items()
        },
        num_constant_waves=_count_constant_sinusoids(relative, whole_grid),
    )


def _measure_random_features(
    kernel: ContentKernel,
    relative: RelativeKernel | None,
    compute_weights: Callable[[ContentKernel, RelativeKernel | None], Tensor],
    weights: Tensor,
    equal_weights: Tensor,
    value: Tensor,
) -> RandomFeatureErrors | None:
    """Measure how much random features change the output of some attention heads.

    Random features approximate a kernel such as softmax. The output is compared with the output of
    this exact kernel, and with the output for equal weights, which is the mean of the values.
    Return None if the heads do not use random features.

    Args:
        kernel: Content kernel of the heads.
        relative: Relative kernel of the heads, or None.
        compute_weights: Returns the attention weights for a content and a relative kernel.
        weights: Attention weights of the heads.
        equal_weights: Attention weights that are equal for all keys of a query.
        value: Values of the heads.
    """
    exact_kernel, exact_relative = kernel, relative
    if isinstance(kernel, FeatureKernel) and kernel.estimates_softmax:
        draws = getattr(kernel, "projection", None)
        exact_kernel = Softmax()
        if isinstance(relative, Rotary):
            # Rotated features estimate no other kernel, but the features before the rotation do.
            weights, exact_relative = compute_weights(kernel, None), None
    elif isinstance(relative, ClippedDistanceFeatures):
        draws = relative.projection
        exact_relative = ClippedDistanceBias(relative.distance_embedding, relative.ring_width)
    else:
        return None
    assert isinstance(draws, Tensor)
    exact_weights = compute_weights(exact_kernel, exact_relative)
    outputs = [part @ value for part in (weights, exact_weights, equal_weights)]
    by_head = zip(*(output.unbind(dim=1) for output in outputs), strict=True)
    num_features, dim = draws.shape
    # The mean squared norm of a draw is `dim`.
    squared_norms = draws.double().square().sum(dim=1)
    return RandomFeatureErrors(
        exact=join_kernel_names(exact_kernel, exact_relative),
        num_features=num_features,
        is_biased=bool((squared_norms / dim - 1).abs().max() < 1e-3),
        total=ApproximationErrors.from_outputs(*outputs),
        by_head=tuple(ApproximationErrors.from_outputs(*head) for head in by_head),
    )


def _estimate_group_costs(group: HeadGroup, inputs: LayerInputs) -> dict[str, Cost]:
    batch, num_tokens, _ = inputs.tokens.shape
    positions = Positions(inputs.grid, inputs.positions, None, inputs.num_prefix_tokens)
    return group.estimate_costs_at(positions, num_tokens, num_tokens, batch=batch)


def _count_constant_sinusoids(relative: RelativeKernel | None, grid: Grid | None) -> int:
    """Count the sinusoids of a relative kernel that are constant on a periodic grid.

    On a periodic grid, each sinusoid is rounded to a whole number of cycles. A sinusoid becomes
    constant if its wavelength is much longer than the grid.
    """
    if not isinstance(relative, Fourier | Rotary) or grid is None:
        return 0
    rounded = Positions(grid).round_frequency_to_periods(relative.frequency)
    is_rounded_to_0 = (rounded == 0).all(dim=-1) & (relative.frequency != 0).any(dim=-1)
    return int(is_rounded_to_0.sum())
