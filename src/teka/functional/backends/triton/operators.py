"""The Triton kernels as operators of torch, which compilers and exports see as one node, with their gradients."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.library import custom_op

from teka._compat import replace
from teka.functional.backends import LOWEST_LOG_SCALE
from teka.functional.backends.feature_sums import featured, plain_sums
from teka.functional.backends.fused.position_maps import PositionMap
from teka.functional.backends.triton import MADE_WITHIN
from teka.functional.backends.triton.bidirectional import two_sided, two_sided_gradients
from teka.functional.backends.triton.causal import causal
from teka.functional.backends.triton.causal_gradients import causal_gradients
from teka.functional.backends.triton.launch import Heads, Map, new_output
from teka.functional.kernels.base import FeatureKernel
from teka.functional.kernels.features import Elu
from teka.functional.kernels.rectified import FlooredRelu, PointwiseKernel
from teka.functional.relative.rotary import Rotary, phasor_of
from teka.functional.shapes import KeyMask, Keys, MapFeatures, Outputs, Queries, Values, Vectors


class Identity(PointwiseKernel):
    """φ(x) = x ≥ 0: features that were made before."""

    name: ClassVar[str] = "identity"
    nonnegative: ClassVar[bool] = True

    def num_features(self, dim: int) -> int:
        return dim

    def feature_map(self, vectors: Vectors, *, scale: float) -> MapFeatures:
        return vectors


FLOORED: dict[str, type[FlooredRelu]] = {
    kind.name: kind for kind in MADE_WITHIN if issubclass(kind, FlooredRelu)
}


def triton_linear(
    query: Queries,
    key: Keys,
    value: Values,
    *,
    kernel: FeatureKernel,
    positions: PositionMap,
    scale: float,
    key_mask: KeyMask,
    is_causal: bool,
) -> Outputs:
    """The weighted means that `linear` gives the sums of, in the dtype of the inputs, with sums in float32.

    out_i = N_i / D_i with N_i = φ̃(q_i)ᵀ Σ_j φ̃(k_j) v_jᵀ and D_i = (1 − λ) φ(q_i)ᵀ Σ_j φ(k_j) + λ ψ(q_i)ᵀ Σ_j ψ(k_j).
    φ̃ are features times waves, or rotated by angles; ψ lengths of pairs, and λ = 0 where nothing is rotated. Segments
    of keys are summed up side by side, each over the power of 2 that brings its largest key into range, and added in
    a fixed order. What is kept for gradients are inputs, outputs, D and the sums; features are made again.

    Source: Katharopoulos et al. 2020, equation 5; the denominator is this library's (`Rotary`).
    """
    exponents, name, epsilon = (
        None,
        kernel.name,
        kernel.epsilon if isinstance(kernel, FlooredRelu) else 0.0,
    )
    if type(kernel) not in MADE_WITHIN:
        name = Identity.name
        query, key, log_scale = kernel.feature_maps(
            query, key, scale=scale, key_mask=key_mask, is_causal=is_causal
        )
        exponents = (
            torch.zeros_like(value[..., 0])
            if log_scale is None
            else log_scale.detach() / math.log(2)
        )
        if log_scale is not None and log_scale.requires_grad:
            key = (
                key * torch.exp(log_scale - log_scale.detach())[..., None]
            )  # 1, with the gradient that exp(s) has
    options = name, positions.form, scale, epsilon, positions.length_share, is_causal
    places = positions.places(query.new_empty((), dtype=torch.float32))
    return feature_attention(query, key, value, key_mask, exponents, *places, *options)[0]


@custom_op("teka::feature_attention", mutates_args=())
def feature_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_mask: Tensor | None,
    exponents: Tensor | None,
    query_places: Tensor | None,
    key_places: Tensor | None,
    kernel: str,
    form: str,
    scale: float,
    epsilon: float,
    share: float,
    is_causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Outputs and what their gradients need; the numbers after the tensors are those of a `Map`."""
    options = Map(kernel, form, scale, epsilon, share, is_causal)
    heads = Heads(query, key, value, key_mask, exponents, query_places, key_places, options)
    return causal(heads) if is_causal else two_sided(heads)


@feature_attention.register_fake
def _(query, key, value, key_mask, exponents, query_places, key_places, *options):
    heads = Heads(query, key, value, key_mask, exponents, query_places, key_places, Map(*options))
    output, num_tokens = new_output(heads.query, heads.value), query.shape[2]
    if not heads.map.is_causal:
        return (
            output,
            heads.empty(num_tokens),
            heads.empty(heads.num_waves, heads.length),
            heads.empty(),
        )
    segments, blocks = (-(-num_tokens // size) for size in (heads.segment, heads.block))
    sums = heads.empty(heads.num_waves, segments, heads.length)
    return output, heads.empty(num_tokens)[None].repeat(2, 1, 1), sums, heads.empty(blocks)


@custom_op("teka::feature_attention_gradients", mutates_args=())
def feature_attention_gradients(
    gradient: Tensor,
    output: Tensor,
    factors: Tensor,
    sums: Tensor,
    peaks: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_mask: Tensor | None,
    exponents: Tensor | None,
    query_places: Tensor | None,
    key_places: Tensor | None,
    kernel: str,
    form: str,
    scale: float,
    epsilon: float,
    share: float,
    is_causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of queries, keys, values, and of the places of queries and keys in every sample."""
    options = Map(kernel, form, scale, epsilon, share, is_causal)
    heads = Heads(query, key, value, key_mask, exponents, query_places, key_places, options)
    compute = causal_gradients if is_causal else two_sided_gradients
    return compute(heads, gradient, output, factors, sums, peaks)


@feature_attention_gradients.register_fake
def _(
    gradient,
    output,
    factors,
    sums,
    peaks,
    query,
    key,
    value,
    key_mask,
    exponents,
    query_places,
    key_places,
    *options,
):
    heads = Heads(query, key, value, key_mask, exponents, query_places, key_places, Map(*options))
    return *(
        torch.empty_like(one) for one in (heads.query, heads.key, heads.value)
    ), *heads.new_place_gradients()


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output, *inputs[:7])
    ctx.options = inputs[7:]


def _gradients(ctx: Any, gradient: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    """By kernels, or, where gradients are to be differentiated again, by way of the plain evaluation."""
    saved = ctx.saved_tensors  # once, as torch.utils.checkpoint asks for
    saved, tensors = saved[:4], saved[4:]
    nothing = (None,) * len(ctx.options)
    if torch.is_grad_enabled():
        return *_differentiable_gradients(gradient, tensors, Map(*ctx.options)), *nothing
    of_query, of_key, of_value, *of_places = feature_attention_gradients(
        gradient, *saved, *tensors, *ctx.options
    )
    found: list[Tensor | None] = []
    for one, of_one in zip(tensors[5:], of_places, strict=True):
        if one is None:
            found.append(None)
        else:
            found.append(
                (of_one if one.shape[0] > 1 else of_one.sum(dim=0, keepdim=True)).to(one.dtype)
            )
    return of_query, of_key, of_value, None, None, *found, *nothing


feature_attention.register_autograd(_gradients, setup_context=_save)


def _differentiable_gradients(gradient: Tensor, tensors: Any, options: Map) -> list[Tensor | None]:
    # Views of their own: where one input is another, or depends on it, the gradient of each is still its own alone.
    inputs = [None if one is None else one.view_as(one) for one in tensors]
    wanted = [one for one in inputs if one is not None and one.requires_grad]
    found = iter(torch.autograd.grad(_plain(inputs, options), wanted, gradient, create_graph=True))
    return [next(found) if one is not None and one.requires_grad else None for one in inputs]


def _plain(tensors: Any, options: Map) -> Tensor:
    """The same by torch's operations, which can be differentiated twice."""
    query, key, value, key_mask, exponents, query_places, key_places = tensors
    kernels = {Elu.name: Elu(), Identity.name: Identity()}
    kernel = (
        FLOORED[options.kernel](options.epsilon)
        if options.kernel in FLOORED
        else kernels[options.kernel]
    )
    wide = (one.float() for one in (query, key, value))
    tokens = featured(
        kernel, *wide, scale=options.scale, key_mask=key_mask, is_causal=options.is_causal
    )
    if exponents is not None and options.is_causal:
        log_scale = exponents * math.log(2)
        if key_mask is not None:
            log_scale = log_scale.masked_fill(~key_mask[:, None], LOWEST_LOG_SCALE)
        tokens = replace(tokens, log_scale=log_scale)
    if options.form == "rotary":
        unused = query_places.new_empty(query.shape[1], query_places.shape[-1], 1)
        rotary = (
            Rotary(unused, "mixed", options.share) if options.share else Rotary(unused, "features")
        )
        sums = rotary.sums_at(tokens, phasor_of(query_places), phasor_of(key_places))
    else:
        sums = plain_sums(tokens, *(() if options.form == "none" else (query_places, key_places)))
    return sums.divide(nonnegative=True).to(query.dtype)
