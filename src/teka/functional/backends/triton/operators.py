"""Linear attention with Triton as PyTorch custom operators, for torch.compile and torch.export."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from teka.functional.backends.linear import (
    attention_sums_without_positions,
    make_linear_attention_inputs,
)
from teka.functional.backends.triton import CONTENT_KERNELS, TritonAngles
from teka.functional.backends.triton.launch import ForwardResult, TritonLaunch, TritonOptions
from teka.functional.kernels.content_kernel import FeatureKernel
from teka.functional.kernels.rectified import FlooredRelu
from teka.functional.relative.rotary import Rotary, compute_phasor
from teka.functional.shapes import KeyMask, Keys, Outputs, Queries, Values


def triton_attention(
    query: Queries,
    key: Keys,
    value: Values,
    *,
    kernel: FeatureKernel,
    positions: TritonAngles,
    scale: float,
    key_mask: KeyMask,
    is_causal: bool,
) -> Outputs:
    """Compute linear attention with Triton kernels on a GPU.

    Outputs have the dtype of the inputs, and sums are computed in float32. The numerator uses
    features that are rotated by the positions. The denominator mixes features without a rotation
    and lengths of feature pairs, as defined in `Rotary`. Gradients are deterministic, because they
    are computed without atomic additions.

    Source: Katharopoulos et al. 2020, equation 5.
    """
    epsilon = kernel.epsilon if isinstance(kernel, FlooredRelu) else 0.0
    return linear_attention(
        query,
        key,
        value,
        key_mask,
        positions.query_angles,
        positions.key_angles,
        kernel.name,
        scale,
        epsilon,
        positions.length_share,
        is_causal,
    )[0]


@custom_op("teka::linear_attention", mutates_args=())
def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_mask: Tensor | None,
    query_angles: Tensor | None,
    key_angles: Tensor | None,
    kernel: str,
    scale: float,
    epsilon: float,
    length_share: float,
    is_causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute linear attention with Triton kernels, as a custom PyTorch operator.

    Return the outputs and intermediate results for the backward pass, as in `ForwardResult`. The
    arguments from `kernel` on are the fields of `TritonOptions`.
    """
    options = TritonOptions(kernel, scale, epsilon, length_share, is_causal)
    launch = TritonLaunch(query, key, value, key_mask, query_angles, key_angles, options)
    return tuple(launch.run_forward_kernels())


@linear_attention.register_fake
def _(query, key, value, key_mask, query_angles, key_angles, *options):
    launch = TritonLaunch(
        query, key, value, key_mask, query_angles, key_angles, TritonOptions(*options)
    )
    return tuple(launch.allocate_result())


@custom_op("teka::linear_attention_gradients", mutates_args=())
def linear_attention_gradients(
    gradient: Tensor,
    output: Tensor,
    inverse: Tensor,
    states: Tensor,
    peaks: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_mask: Tensor | None,
    query_angles: Tensor | None,
    key_angles: Tensor | None,
    kernel: str,
    scale: float,
    epsilon: float,
    length_share: float,
    is_causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute the gradients of linear attention with Triton kernels, as a custom PyTorch operator.

    Return the gradients of queries, keys, values and rotary angles. Those of the angles are not yet
    summed over the samples of the batch, which may share their angles.
    """
    options = TritonOptions(kernel, scale, epsilon, length_share, is_causal)
    launch = TritonLaunch(query, key, value, key_mask, query_angles, key_angles, options)
    return launch.run_backward_kernels(gradient, ForwardResult(output, inverse, states, peaks))


@linear_attention_gradients.register_fake
def _(gradient, output, inverse, states, peaks, query, key, value, key_mask, *more):
    launch = TritonLaunch(query, key, value, key_mask, more[0], more[1], TritonOptions(*more[2:]))
    return launch.allocate_gradients()


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output, *inputs[:6])
    ctx.options = inputs[6:]


def _backward(ctx: Any, gradient: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    """Compute the gradients of linear attention with Triton kernels.

    With `create_graph=True`, PyTorch operations are used instead, because the Triton kernels have
    no second derivatives.
    """
    saved = ctx.saved_tensors  # torch.utils.checkpoint allows one access
    results = saved[:4]
    inputs = saved[4:]
    no_gradients = (None,) * len(ctx.options)
    if torch.is_grad_enabled():
        return *_differentiable_gradients(
            gradient, inputs, TritonOptions(*ctx.options)
        ), *no_gradients
    *grad_tokens, grad_query_angles, grad_key_angles = linear_attention_gradients(
        gradient, *results, *inputs, *ctx.options
    )
    query_angles, key_angles = inputs[4:]
    grad_angles = (None, None)
    if query_angles is not None:
        # All samples may share their angles.
        grad_angles = (
            grad_query_angles.sum_to_size(query_angles.shape),
            grad_key_angles.sum_to_size(key_angles.shape),
        )
    return *grad_tokens, None, *grad_angles, *no_gradients


linear_attention.register_autograd(_backward, setup_context=_save_for_backward)


def _differentiable_gradients(
    gradient: Tensor, inputs: Sequence[Tensor | None], options: TritonOptions
) -> list[Tensor | None]:
    # Views, because an input may be used twice or depend on another input.
    views = [None if tensor is None else tensor.view_as(tensor) for tensor in inputs]
    learned = [view for view in views if view is not None and view.requires_grad]
    output = _twice_differentiable_attention(views, options)
    gradients = iter(torch.autograd.grad(output, learned, gradient, create_graph=True))
    return [next(gradients) if view is not None and view.requires_grad else None for view in views]


def _twice_differentiable_attention(inputs: Sequence[Any], options: TritonOptions) -> Tensor:
    """Compute linear attention with PyTorch operations, which support second derivatives."""
    query, key, value, key_mask, query_angles, key_angles = inputs
    kernel_class = {kind.name: kind for kind in CONTENT_KERNELS}[options.kernel]
    is_floored = issubclass(kernel_class, FlooredRelu)
    kernel = kernel_class(options.epsilon) if is_floored else kernel_class()
    tokens = make_linear_attention_inputs(
        kernel,
        query.float(),
        key.float(),
        value.float(),
        scale=options.scale,
        key_mask=key_mask,
        is_causal=options.is_causal,
    )
    if query_angles is None:
        sums = attention_sums_without_positions(tokens)
    else:
        unused_frequency = query_angles.new_empty(query.shape[1], query_angles.shape[-1], 1)
        normalizer = "mixed" if options.length_share else "features"
        rotary = Rotary(unused_frequency, normalizer, options.length_share or 1.0)
        sums = rotary.rotary_attention_sums(
            tokens, compute_phasor(query_angles), compute_phasor(key_angles)
        )
    return sums.normalize(nonnegative=True).to(query.dtype)
