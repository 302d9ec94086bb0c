"""An attention in two steps: a plan, made of everything but the numbers, and its evaluation on query, key and value."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from teka._compat import ProcessGroup, replace
from teka.checks import POSITIVE_NUMBER, check_tensor, is_positive
from teka.errors import wrong_shape, wrong_value
from teka.execution_mode import ExecutionMode, execution_mode, is_readable
from teka.functional.backends import FeatureInputs, WeightedSums, add_prefix
from teka.functional.backends.dense import fused_softmax, matrix_attention
from teka.functional.backends.feature_sums import featured, plain_sums
from teka.functional.backends.triton import TritonPositions, can_use_triton
from teka.functional.dispatch import Workload, chosen
from teka.functional.kernels import make_kernel
from teka.functional.kernels.base import DenseInputs, Kernel, mask_features
from teka.functional.long_inputs import LongAttention
from teka.functional.positions import Positions
from teka.functional.relative import make_relative
from teka.functional.relative.base import Relative
from teka.functional.shapes import KeyMask, Keys, Outputs, Queries, QueryMask, Values
from teka.precision import without_autocast

# Larger queries, keys or values are computed in float64, in which the products of four of them do not overflow.
LARGEST_IN_FLOAT32 = 1e4


def check_inputs(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Check that queries, keys and values are floating tensors of shapes and dtypes that fit."""
    check_tensor("query", query, "batch", "heads", "tokens", "dim")
    batch, heads, _, dim = query.shape
    check_tensor("key", key, batch, heads, "tokens", dim)
    check_tensor("value", value, batch, heads, key.shape[2], "dim")
    for argument, tensor in (("key", key), ("value", value)):
        if tensor.dtype != query.dtype:
            raise wrong_value(argument, tensor.dtype, f"of {query.dtype}, like query")


@dataclass(frozen=True)
class Plan:
    """One attention with everything decided: kernels that fit each other and the positions, and the backend."""

    kernel: Kernel
    relative: Relative | None
    positions: Positions
    scale: float
    is_causal: bool
    backend: str = "dense"
    group: ProcessGroup | None = None  # over which the tokens are divided

    @classmethod
    def of_kernels(
        cls,
        kernel: str | Kernel,
        relative: str | Relative | None,
        positions: Positions,
        *,
        heads: int,
        dim: int,
        is_causal: bool,
        scale: float | None = None,
    ) -> "Plan":
        """The plan of kernels, by name or made already, checked to fit; of no backend yet."""
        longer, positions = 0, Positions() if relative is None else positions
        if relative is not None:
            if not isinstance(relative, Relative):
                relative = make_relative(
                    relative, heads=heads, dim=dim, num_axes=positions.num_axes, kernel=kernel
                )
            longer = relative.num_position_features if relative.appends_features else 0
        if not isinstance(kernel, Kernel):
            kernel = make_kernel(kernel, dim + longer)
        if relative is not None:
            relative.check(heads=heads, dim=dim, num_axes=positions.num_axes, kernel=kernel)
            relative = relative.for_kernel(kernel).for_positions(positions)
        if scale is not None and not is_positive(scale):
            raise wrong_value("scale", scale, POSITIVE_NUMBER)
        factor = float((dim + longer) ** -0.5 if scale is None else scale)
        return cls(kernel, relative, positions, factor, is_causal)

    def computed_by(self, backend: str, *, device_type: str, **sizes: int) -> "Plan":
        """The plan with a backend, or with "auto" the cheapest for the sizes of a `Workload`."""
        work = Workload(
            self.kernel, self.relative, self.positions, **sizes, is_causal=self.is_causal
        )
        return replace(self, backend=chosen(backend, work, device_type))

    def attend(
        self,
        query: Queries,
        key: Keys,
        value: Values,
        *,
        backend: str,
        key_mask: KeyMask,
        query_mask: QueryMask,
    ) -> Outputs:
        """The attention of tokens by a backend, or by the cheapest for them with "auto"."""
        sizes = {"num_queries": query.shape[2], "num_keys": key.shape[2]}
        if self.is_causal and sizes["num_keys"] != sizes["num_queries"]:
            expected = (
                f"{sizes['num_queries']} tokens, the same number as query, with is_causal=True"
            )
            raise wrong_shape("key", key.shape, expected)
        sizes = {
            **sizes,
            "dim": query.shape[-1],
            "dim_value": value.shape[-1],
            "heads": query.shape[1],
        }
        if not torch.compiler.is_compiling():  # a compiled graph may be of any number of samples
            sizes["batch"] = max(1, query.shape[0])  # there may be none
        plan = self.computed_by(backend, device_type=query.device.type, **sizes)
        return plan.evaluate(query, key, value, key_mask=key_mask, query_mask=query_mask)

    def attend_packed(
        self, query: Queries, key: Keys, value: Values, lengths: Sequence[int], *, backend: str
    ) -> Outputs:
        """The same of sequences one after another, each of which sees itself alone; all of one length at once."""
        parts = [one.split(lengths, dim=2) for one in (query, key, value)]
        points = (
            None if self.positions.points is None else self.positions.points.split(lengths, dim=-2)
        )
        outputs: dict[int, Tensor] = {}
        for length in sorted(set(lengths)):
            rows = [row for row, one in enumerate(lengths) if one == length]
            plan = self
            if points is not None:
                many = [points[row].expand(len(query), -1, -1) for row in rows]
                plan = replace(self, positions=Positions(points=torch.cat(many)))
            those = (torch.cat([part[row] for row in rows]) for part in parts)
            found = plan.attend(*those, backend=backend, key_mask=None, query_mask=None)
            outputs |= dict(zip(rows, found.chunk(len(rows)), strict=True))
        return torch.cat([outputs[row] for row in range(len(lengths))], dim=2)

    def joined(self, query: Queries, key: Keys) -> tuple["Plan", Tensor, Tensor]:
        """The plan without a relative kernel that only lengthens queries and keys, and these."""
        vectors = None
        if self.relative is not None and self.relative.appends_features:
            vectors = self.relative.softmax_vectors(query, key, self.positions, scale=self.scale)
        return (
            (self, query, key)
            if vectors is None
            else (replace(self, relative=None, scale=1.0), *vectors)
        )

    def evaluate(
        self, query: Queries, key: Keys, value: Values, *, key_mask: KeyMask, query_mask: QueryMask
    ) -> Outputs:
        """The attention of these tokens, in float32 at least and returned in their own dtype."""
        dtype = query.dtype
        with without_autocast(query.device.type):
            triton_positions = self.triton_positions(query, key, value)
        use_triton = triton_positions is not None
        if dtype in (torch.float16, torch.bfloat16) and not use_triton:
            query, key, value = query.float(), key.float(), value.float()
        # What is dropped is 0 from here on, so that not even a NaN there reaches an output or a gradient.
        query, broken = mask_features(query, query_mask), None
        key, value = mask_features(key, key_mask), mask_features(value, key_mask)
        is_large = (
            not use_triton
            and self.group is None
            and any(map(is_large_float32, (query, key, value)))
        )
        # The causal Triton kernels handle non-finite inputs themselves.
        is_checked = not use_triton if self.is_causal else key_mask is not None
        if self.group is None and is_checked:
            query, key, value, broken = _without_broken(query, key, value, is_causal=self.is_causal)
        if is_large:
            output = self._in_float64(query, key, value, key_mask=key_mask, query_mask=query_mask)
        else:
            output = self._attend(
                query,
                key,
                value,
                key_mask=key_mask,
                query_mask=query_mask,
                triton_positions=triton_positions,
            )
        if broken is not None:
            output = output.masked_fill(broken[..., None], torch.nan)
        return mask_features(output, query_mask).to(dtype)

    def _in_float64(
        self, query: Queries, key: Keys, value: Values, *, key_mask: KeyMask, query_mask: QueryMask
    ) -> Outputs:
        """Attend in float64; causally from the first large token on, so that no bit before it depends on it."""
        masks: dict[str, Any] = {"key_mask": key_mask, "query_mask": query_mask}
        output = self._attend(query.double(), key.double(), value.double(), **masks)
        if not self.is_causal:
            return output
        is_large = torch.stack(
            [one.detach().abs().amax(dim=-1) > LARGEST_IN_FLOAT32 for one in (query, key, value)]
        )
        is_large = is_large.any(dim=0)[..., None]
        query, key, value = (one.masked_fill(is_large, 0.0) for one in (query, key, value))
        return torch.where(
            is_large.cumsum(dim=2) > 0, output.to(query), self._attend(query, key, value, **masks)
        )

    def _attend(
        self,
        query: Queries,
        key: Keys,
        value: Values,
        *,
        key_mask: KeyMask,
        query_mask: QueryMask,
        triton_positions: TritonPositions | None = None,
    ) -> Outputs:
        """Attend in the dtype of the tokens, in which what is dropped is 0."""
        with without_autocast(query.device.type):
            plan, query, key = self.joined(query, key)
            if not plan.is_causal and plan.kernel.features is not None:
                # Where there is a key for every query, a query whose key is dropped has no part in a statistic either.
                counted = (
                    key_mask
                    if query_mask is None and query.shape[2] == key.shape[2]
                    else query_mask
                )
                features = plan.kernel.features
                fitted = features.fitted(
                    query, key, scale=plan.scale, query_mask=counted, key_mask=key_mask
                )
                plan = plan if fitted is features else replace(plan, kernel=fitted)
            attend = {"dense": dense, "windows": windowed}.get(plan.backend, fast)
            if triton_positions is not None:
                attend = partial(by_triton, positions=triton_positions)
            return attend(plan, query, key, value, key_mask=key_mask)

    def triton_positions(self, query: Queries, key: Keys, value: Values) -> TritonPositions | None:
        """Return the rotary angles for the Triton kernels, or None if these cannot compute the attention."""
        kernel = self.kernel.features
        if self.backend != "linear" or self.group is not None or kernel is None:
            return None
        if not can_use_triton(kernel, query, value):
            return None
        if execution_mode(query, key, value) is ExecutionMode.TRANSFORMED:
            return None
        if self.relative is None:
            return TritonPositions()
        if self.positions.num_prefix_tokens:
            return None
        like = query.new_empty((), dtype=torch.float32)
        positions = self.relative.triton_positions(self.positions, like, query.shape[-1])
        if positions is None or execution_mode(*positions.tensors) is ExecutionMode.TRANSFORMED:
            return None
        return positions


def dense(plan: Plan, query: Queries, key: Keys, value: Values, *, key_mask: KeyMask) -> Outputs:
    """A plan from every pair: the truth for the other backends."""
    pairs = DenseInputs(query, key, value, plan.kernel, plan.scale, key_mask, plan.is_causal)
    if plan.relative is not None:
        return plan.relative.dense(pairs, plan.positions)
    vectors = plan.kernel.softmax_vectors(query, key)
    if vectors is None:
        return matrix_attention(pairs, None)
    return fused_softmax(replace(pairs, query=vectors[0], key=vectors[1]))


def windowed(plan: Plan, query: Queries, key: Keys, value: Values, *, key_mask: KeyMask) -> Outputs:
    """A plan whose queries see near keys alone, by tiles of their grid."""
    assert plan.relative is not None
    pairs = DenseInputs(query, key, value, plan.kernel, plan.scale, key_mask, plan.is_causal)
    return plan.relative.local_attention(pairs, plan.positions)


def by_triton(
    plan: Plan,
    query: Queries,
    key: Keys,
    value: Values,
    *,
    key_mask: KeyMask,
    positions: TritonPositions,
) -> Outputs:
    """Compute the attention by the Triton kernels, which are imported when they are first used."""
    from teka.functional.backends.triton.operators import triton_attention

    kernel = plan.kernel.features
    assert kernel is not None
    options = {"scale": plan.scale, "key_mask": key_mask, "is_causal": plan.is_causal}
    return triton_attention(query, key, value, kernel=kernel, positions=positions, **options)


def fast(plan: Plan, query: Queries, key: Keys, value: Values, *, key_mask: KeyMask) -> Outputs:
    """Compute the attention by sums over keys of products of features."""
    kernel = plan.kernel.features
    assert kernel is not None
    if plan.backend == "linear" and plan.group is None:
        long = LongAttention(kernel, plan.relative, plan.positions, plan.scale, plan.is_causal)
        if long.is_needed(query):
            return long.attend(query, key, value, key_mask)
    # Elementwise operations are faster on contiguous memory. Projections give transposed heads.
    tokens = featured(
        kernel,
        query.contiguous(),
        key.contiguous(),
        value,
        scale=plan.scale,
        key_mask=key_mask,
        is_causal=plan.is_causal,
        group=plan.group,
    )
    sums = _sums_of(plan, tokens)
    if kernel.normalizes_by_count:
        ones = (
            torch.ones_like(query[..., :1]),
            mask_features(torch.ones_like(key[..., :1]), key_mask),
        )
        counted = replace(
            tokens, query_features=ones[0], key_features=ones[1], value=value[..., :1]
        )
        sums = sums.over(_sums_of(plan, counted))
    return sums.divide(nonnegative=kernel.nonnegative or kernel.normalizes_by_count)


def _sums_of(plan: Plan, tokens: FeatureInputs) -> WeightedSums:
    relative, first = plan.relative, plan.positions.num_prefix_tokens
    if relative is None:
        return plain_sums(tokens)
    sums = relative.sums(plan.backend, tokens.after(first), plan.positions)
    return add_prefix(sums, tokens, first, relative.sums_without_positions)


def is_large_float32(tensor: Tensor) -> bool:
    """Return True if products of these elements may overflow in float32; read in eager mode on a CPU only."""
    if tensor.dtype != torch.float32 or not tensor.is_cpu or not is_readable(tensor):
        return False
    tensor = tensor.detach()
    # The norm is an upper bound and four times faster than the largest absolute value.
    return bool(torch.linalg.vector_norm(tensor) > LARGEST_IN_FLOAT32) and (
        max(float(tensor.amax()), -float(tensor.amin())) > LARGEST_IN_FLOAT32
    )


def _all_finite(*tensors: Tensor) -> bool:
    """Whether all numbers are finite; a sum, which passes over them once, is only then, if not too large."""
    return all(bool(one.detach().sum().isfinite()) for one in tensors)


def _without_broken(
    query: Queries, key: Keys, value: Values, *, is_causal: bool
) -> tuple[Queries, Keys, Values, Bool[Tensor, "batch heads queries"] | None]:
    """Inputs with 0 for what is NaN or infinite and need not reach all outputs, and those that it reaches, or None."""
    if execution_mode(query) is ExecutionMode.SHAPES_ONLY or (
        query.is_cpu and is_readable(query) and _all_finite(query, key, value)
    ):
        return query, key, value, None
    sizes = (one.detach().abs().amax(dim=-1) for one in (query, key, value))
    of_query, of_key, of_value = (~size.isfinite() for size in sizes)
    if not is_causal:
        return query.masked_fill(of_query[..., None], 0.0), key, value, of_query
    of_key = of_key | of_value
    query, key, value = (
        one.masked_fill(lost[..., None], 0.0)
        for one, lost in ((query, of_query), (key, of_key), (value, of_key))
    )
    return query, key, value, of_query | (of_key.cumsum(dim=-1) > 0)
