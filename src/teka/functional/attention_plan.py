"""Settings of an attention call, and the choice of the fastest algorithm (backend) for it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from teka._compat import ProcessGroup, replace
from teka.checks import POSITIVE_NUMBER, check_tensor, is_positive
from teka.errors import wrong_shape, wrong_value
from teka.execution_mode import ExecutionMode, execution_mode, has_dynamic_size
from teka.functional.backends.attention_sums import (
    LinearAttentionInputs,
    WeightedSums,
    add_prefix_tokens,
)
from teka.functional.backends.costs import (
    AttentionSizes,
    Cost,
    dense_cost,
    linear_cost,
    select_backend,
)
from teka.functional.backends.dense import dense_attention, fused_softmax_attention
from teka.functional.backends.linear import (
    attention_sums_without_positions,
    make_linear_attention_inputs,
)
from teka.functional.backends.triton import TritonAngles, can_use_triton
from teka.functional.kernels import make_content_kernel
from teka.functional.kernels.content_kernel import (
    ContentKernel,
    DenseAttentionInputs,
    mask_features,
)
from teka.functional.long_inputs import ChunkedLinearAttention
from teka.functional.positions import Positions
from teka.functional.relative import make_relative_kernel
from teka.functional.relative.relative_kernel import RelativeKernel
from teka.functional.shapes import KeyMask, Keys, Outputs, Queries, QueryMask, Values
from teka.precision import without_autocast

# Larger queries, keys or values are computed in float64, because products of four of them may
# overflow in float32.
LARGEST_IN_FLOAT32 = 1e4
# Number of queries and of keys that the choice of the backend assumes if an exported graph serves
# any number.
DYNAMIC_TOKENS = 4096


def check_query_key_value(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Check that queries, keys and values have the same dtype and matching shapes."""
    check_tensor("query", query, "batch", "heads", "tokens", "dim")
    batch, heads, _, dim = query.shape
    check_tensor("key", key, batch, heads, "tokens", dim)
    check_tensor("value", value, batch, heads, key.shape[2], "dim")
    for argument, tensor in (("key", key), ("value", value)):
        if tensor.dtype != query.dtype:
            raise wrong_value(argument, tensor.dtype, f"of {query.dtype}, like query")


def unchecked_attention(
    query: Queries,
    key: Keys,
    value: Values,
    *,
    kernel: str | ContentKernel,
    relative: str | RelativeKernel | None,
    positions: Positions,
    key_mask: KeyMask = None,
    query_mask: QueryMask = None,
    is_causal: bool = False,
    scale: float | None = None,
    backend: str = "auto",
    group: ProcessGroup | None = None,
    sequence_lengths: Sequence[int] | None = None,
) -> Outputs:
    """Compute attention for inputs whose shapes and dtypes have been checked.

    Arguments and errors are those of `teka.functional.attention`. `group` is a process group over
    which the tokens are divided. `sequence_lengths` are the lengths of sequences that are
    concatenated without padding.
    """
    plan = make_attention_plan(
        kernel,
        relative,
        positions,
        heads=query.shape[1],
        dim=query.shape[-1],
        is_causal=is_causal,
        scale=scale,
    )
    if sequence_lengths is not None:
        return _attend_packed(plan, query, key, value, sequence_lengths, backend)
    if group is not None:
        plan = replace(plan, backend="linear", group=group)
    else:
        plan = plan.with_backend(backend, query, key, value)
    return plan.attend(query, key, value, key_mask=key_mask, query_mask=query_mask)


def make_attention_plan(
    kernel: str | ContentKernel,
    relative: str | RelativeKernel | None,
    positions: Positions,
    *,
    heads: int,
    dim: int,
    is_causal: bool,
    scale: float | None = None,
) -> "AttentionPlan":
    """Create the plan of an attention call, with kernels that are adapted to the input.

    Kernels that are given by name are created, and all kernels are checked against the sizes and
    the positions of the input. `AttentionPlan.with_backend` chooses the backend later.

    Args:
        kernel: Name of a content kernel, or an instance.
        relative: Name of a relative kernel, an instance, or None.
        positions: Positions of queries and keys.
        heads: Number of heads.
        dim: Size of queries and keys.
        is_causal: True if no query sees a later key.
        scale: Factor of qᵀk. By default 1/√dim, with the features that the relative kernel appends
            counted in dim.

    Raises:
        ValueError: A name is unknown, or a kernel does not fit the sizes or the positions.
    """
    num_axes = positions.num_axes
    if relative is None:
        positions = Positions()
    elif not isinstance(relative, RelativeKernel):
        relative = make_relative_kernel(
            relative, heads=heads, dim=dim, num_axes=num_axes, kernel=kernel
        )
    total_dim = dim
    if relative is not None and relative.appends_features:
        total_dim += relative.num_position_features
    if not isinstance(kernel, ContentKernel):
        kernel = make_content_kernel(kernel, total_dim)
    if relative is not None:
        relative.check_kernel_and_positions(heads=heads, dim=dim, num_axes=num_axes, kernel=kernel)
        relative = relative.adapt_to_kernel(kernel).adapt_to_positions(positions)
    if scale is not None and not is_positive(scale):
        raise wrong_value("scale", scale, POSITIVE_NUMBER)
    factor = total_dim**-0.5 if scale is None else float(scale)
    return AttentionPlan(kernel, relative, positions, factor, is_causal)


@dataclass(frozen=True)
class AttentionPlan:
    """Settings of an attention call: kernels, positions, scale and backend.

    A backend is an algorithm that computes attention. All backends give the same result.

    Args:
        kernel: Content kernel.
        relative: Relative kernel, or None.
        positions: Positions of queries and keys, empty without a relative kernel.
        scale: Factor of qᵀk.
        is_causal: True if no query sees a later key.
        backend: Name of the backend.
        group: Process group over which the tokens are divided.
    """

    kernel: ContentKernel
    relative: RelativeKernel | None
    positions: Positions
    scale: float
    is_causal: bool
    backend: str = "dense"
    group: ProcessGroup | None = None

    def with_backend(
        self, backend: str, query: Queries, key: Keys, value: Values
    ) -> "AttentionPlan":
        """Return a copy of the plan with a given backend, the algorithm that computes attention.

        For "auto", this is the backend with the lowest estimated cost for these inputs.
        """
        batch, heads, num_queries, dim = query.shape
        num_keys = key.shape[2]
        if self.is_causal and num_keys != num_queries:
            raise wrong_shape("key", key.shape, f"{num_queries} tokens, the same number as query")
        if has_dynamic_size(num_queries, num_keys):
            num_queries = num_keys = DYNAMIC_TOKENS
        costs = self.estimate_costs(
            heads=heads,
            # A compiled graph may serve any batch size. A batch may be empty.
            batch=1 if torch.compiler.is_compiling() else max(1, batch),
            num_queries=num_queries,
            num_keys=num_keys,
            dim=dim,
            dim_value=value.shape[-1],
        )
        chosen_backend = select_backend(backend, costs, query.device.type)
        return replace(self, backend=chosen_backend)

    def estimate_costs(
        self, *, heads: int, num_queries: int, num_keys: int, dim: int, dim_value: int, batch: int
    ) -> dict[str, Cost]:
        """Estimate the cost of this attention for each algorithm (backend) that can compute it.

        Args:
            heads: Number of heads.
            num_queries: Number of queries.
            num_keys: Number of keys.
            dim: Size of queries and keys.
            dim_value: Size of values.
            batch: Number of samples.
        """
        relative, positions, features = self.relative, self.positions, self.kernel.features
        if relative is not None and relative.appends_features:
            dim += relative.num_position_features
            relative = None
        product_size = self.kernel.inner_product_size(dim)
        dense_passes, num_appended = self._estimate_dense_work(relative, batch)
        costs = {
            "dense": dense_cost(
                num_queries, num_keys, product_size + num_appended, dim_value, passes=dense_passes
            )
        }
        if relative is not None and not self.is_causal:
            window_cost = relative.window_cost(positions, product_size, dim_value)
            if window_cost is not None:
                costs["windows"] = window_cost
        has_causal_prefix = self.is_causal and positions.num_prefix_tokens > 0
        if features is not None and not (has_causal_prefix and relative is not None):
            num_features = features.num_features(dim)
            sizes = AttentionSizes(num_queries, num_keys, num_features, dim_value, self.is_causal)
            if relative is None:
                costs["linear"] = linear_cost(sizes)
            else:
                costs.update(relative.estimate_costs(sizes, positions))
        num_heads = heads * batch
        return {name: replace(cost, heads=num_heads) for name, cost in costs.items()}

    def _estimate_dense_work(self, relative: RelativeKernel | None, batch: int) -> tuple[int, int]:
        """Return two estimates on which the cost of the backend "dense" depends.

        The first is the number of passes over the full matrix of attention weights. Each pass reads
        and writes the matrix. The second is the number of entries that the relative kernel appends
        to each query and key.
        """
        if self.kernel.is_softmax:
            # PyTorch's fused kernel stores no matrix.
            num_appended = 0 if relative is None else relative.num_appended_entries(self.positions)
            if num_appended is not None:
                return 1, num_appended
        passes = 3
        if relative is not None:
            passes = relative.num_weight_matrix_passes(self.positions.num_axes)
            depends_on_sample = relative.uses_query or relative.rotates_features
            if not depends_on_sample and self.positions.grid is not None:
                # The samples of a batch share one matrix of the relative kernel.
                passes = 3 + math.ceil((passes - 3) / batch)
        return passes + self.kernel.extra_dense_passes, 0

    def attend(
        self, query: Queries, key: Keys, value: Values, *, key_mask: KeyMask, query_mask: QueryMask
    ) -> Outputs:
        """Compute attention for queries, keys and values with the settings of this plan.

        The computation uses float32 or float64, and the outputs have the dtype of the inputs.
        """
        dtype = query.dtype
        with without_autocast(query.device.type):
            triton_angles = self._triton_angles(query, key, value)
        use_triton = triton_angles is not None
        if dtype in (torch.float16, torch.bfloat16) and not use_triton:
            query, key, value = query.float(), key.float(), value.float()
        # Masked tokens are 0 from here on, so that a NaN in them reaches no output and no gradient.
        query = mask_features(query, query_mask)
        key, value = mask_features(key, key_mask), mask_features(value, key_mask)
        mode = execution_mode(query, key, value)
        can_read = mode is ExecutionMode.EAGER and query.is_cpu
        needs_float64 = (
            can_read
            and not use_triton
            and self.group is None
            and (
                may_overflow_in_float32(query)
                or may_overflow_in_float32(key)
                or may_overflow_in_float32(value)
            )
        )
        is_nan = None
        # The causal Triton kernels handle non-finite inputs themselves.
        needs_check = not use_triton if self.is_causal else key_mask is not None
        has_elements = mode is not ExecutionMode.SHAPES_ONLY
        if needs_check and has_elements and self.group is None:
            query, key, value, is_nan = _replace_nonfinite(
                query, key, value, self.is_causal, can_read
            )
        if needs_float64:
            output = self._attend_in_float64(query, key, value, key_mask, query_mask)
        else:
            output = self._attend_with_backend(
                query, key, value, key_mask, query_mask, triton_angles
            )
        if is_nan is not None:
            output = output.masked_fill(is_nan[..., None], torch.nan)
        return mask_features(output, query_mask).to(dtype)

    def _attend_in_float64(
        self, query: Queries, key: Keys, value: Values, key_mask: KeyMask, query_mask: QueryMask
    ) -> Outputs:
        """Compute attention in float64, because products of the inputs may overflow in float32.

        In causal attention, the outputs before the first token with large elements are computed in
        float32, so that later tokens do not change the rounding of earlier outputs.
        """
        output = self._attend_with_backend(
            query.double(), key.double(), value.double(), key_mask, query_mask
        )
        if not self.is_causal:
            return output
        peaks = [tensor.detach().abs().amax(dim=-1) for tensor in (query, key, value)]
        is_large = (torch.stack(peaks) > LARGEST_IN_FLOAT32).any(dim=0)[..., None]
        query, key, value = (tensor.masked_fill(is_large, 0.0) for tensor in (query, key, value))
        earlier = self._attend_with_backend(query, key, value, key_mask, query_mask)
        return torch.where(is_large.cumsum(dim=2) > 0, output.to(query), earlier)

    def _attend_with_backend(
        self,
        query: Queries,
        key: Keys,
        value: Values,
        key_mask: KeyMask,
        query_mask: QueryMask,
        triton_angles: TritonAngles | None = None,
    ) -> Outputs:
        """Compute attention with the backend of this plan, for inputs that `attend` has prepared.

        In these inputs, masked tokens are 0, and NaN and infinity are replaced where they would
        spread to the outputs of other queries.
        """
        with without_autocast(query.device.type):
            plan, query, key = self.append_position_features(query, key)
            plan = plan._with_kernel_statistics(query, key, key_mask, query_mask)
            if plan.backend == "dense":
                return plan._attend_dense(query, key, value, key_mask)
            if plan.backend == "windows":
                assert plan.relative is not None
                inputs = plan._dense_inputs(query, key, value, key_mask)
                return plan.relative.local_attention(inputs, plan.positions)
            return plan._attend_by_features(query, key, value, key_mask, triton_angles)

    def _attend_dense(self, query: Queries, key: Keys, value: Values, key_mask: KeyMask) -> Outputs:
        """Compute attention from the full matrix of weights (the backend "dense")."""
        inputs = self._dense_inputs(query, key, value, key_mask)
        if self.relative is not None:
            return self.relative.dense_attention(inputs, self.positions)
        vectors = self.kernel.convert_to_softmax_vectors(query, key)
        if vectors is None:
            return dense_attention(inputs, None)
        query, key = vectors
        return fused_softmax_attention(replace(inputs, query=query, key=key))

    def _attend_by_features(
        self,
        query: Queries,
        key: Keys,
        value: Values,
        key_mask: KeyMask,
        triton_angles: TritonAngles | None,
    ) -> Outputs:
        """Compute attention from sums of products of features."""
        kernel = self.kernel.features
        assert kernel is not None
        options = {"scale": self.scale, "key_mask": key_mask, "is_causal": self.is_causal}
        if triton_angles is not None:
            # Triton is imported when it is first needed.
            from teka.functional.backends.triton.operators import triton_attention

            return triton_attention(
                query, key, value, kernel=kernel, positions=triton_angles, **options
            )
        if self.backend == "linear" and self.group is None:
            long = ChunkedLinearAttention(
                kernel, self.relative, self.positions, self.scale, key_mask, self.is_causal
            )
            if long.needs_chunks(query):
                return long.attend(query, key, value)
        # Elementwise operations are faster on contiguous memory than on the transposed heads of
        # projections.
        query, key = query.contiguous(), key.contiguous()
        tokens = make_linear_attention_inputs(
            kernel, query, key, value, group=self.group, **options
        )
        sums = self._weighted_sums(tokens)
        if kernel.normalizes_by_count:
            ones = torch.ones_like(query[..., :1])
            key_ones = mask_features(torch.ones_like(key[..., :1]), key_mask)
            counted = replace(
                tokens, query_features=ones, key_features=key_ones, value=value[..., :1]
            )
            sums = sums.replace_denominator(self._weighted_sums(counted))
        return sums.normalize(nonnegative=kernel.nonnegative or kernel.normalizes_by_count)

    def _weighted_sums(self, tokens: LinearAttentionInputs) -> WeightedSums:
        relative, num_prefix_tokens = self.relative, self.positions.num_prefix_tokens
        if relative is None:
            return attention_sums_without_positions(tokens)
        sums = relative.weighted_sums(
            self.backend, tokens.without_first_tokens(num_prefix_tokens), self.positions
        )
        return add_prefix_tokens(sums, tokens, num_prefix_tokens, relative.sums_without_positions)

    def append_position_features(
        self, query: Queries, key: Keys
    ) -> tuple["AttentionPlan", Tensor, Tensor]:
        """Append entries that encode the position to queries and keys.

        Inner products of the longer vectors contain the position-dependent weights. The returned
        plan therefore has no relative kernel. If the relative kernel appends no entries, the plan,
        the queries and the keys are returned unchanged.
        """
        if self.relative is None or not self.relative.appends_features:
            return self, query, key
        vectors = self.relative.convert_to_softmax_vectors(
            query, key, self.positions, scale=self.scale
        )
        if vectors is None:
            return self, query, key
        return replace(self, relative=None, scale=1.0), *vectors

    def _with_kernel_statistics(
        self, query: Queries, key: Keys, key_mask: KeyMask, query_mask: QueryMask
    ) -> "AttentionPlan":
        """Return a copy of the plan whose content kernel stores statistics of queries and keys.

        `Taylor2`, for example, stores the mean of the keys in order to subtract it. Most kernels
        need no statistics, and the plan is returned unchanged.
        """
        features = self.kernel.features
        if self.is_causal or features is None:
            return self
        if query_mask is None and query.shape[2] == key.shape[2]:
            query_mask = key_mask  # in self-attention, padding has neither keys nor queries
        fitted = features.with_statistics(
            query, key, scale=self.scale, query_mask=query_mask, key_mask=key_mask
        )
        return self if fitted is features else replace(self, kernel=fitted)

    def _dense_inputs(
        self, query: Queries, key: Keys, value: Values, key_mask: KeyMask
    ) -> DenseAttentionInputs:
        return DenseAttentionInputs(
            query, key, value, self.kernel, self.scale, key_mask, self.is_causal
        )

    def _triton_angles(self, query: Queries, key: Keys, value: Values) -> TritonAngles | None:
        """Return the rotary angles for the Triton kernels, or None if these cannot be used.

        Without a relative kernel, there are no angles, and the result is an empty `TritonAngles`.
        """
        kernel = self.kernel.features
        if self.backend != "linear" or self.group is not None or kernel is None:
            return None
        if not can_use_triton(kernel, query, value):
            return None
        if execution_mode(query, key, value) is ExecutionMode.TRANSFORMED:
            return None
        if self.relative is None:
            return TritonAngles()
        if self.positions.num_prefix_tokens:
            return None
        like = query.new_empty((), dtype=torch.float32)
        positions = self.relative.triton_angles(self.positions, like, query.shape[-1])
        if (
            positions is None
            or execution_mode(*positions.angle_tensors) is ExecutionMode.TRANSFORMED
        ):
            return None
        return positions


def _attend_packed(
    plan: AttentionPlan,
    query: Queries,
    key: Keys,
    value: Values,
    lengths: Sequence[int],
    backend: str,
) -> Outputs:
    """Compute attention within each of several sequences that are concatenated without padding.

    Sequences of the same length are computed together, as one batch.
    """
    points = plan.positions.points
    query_parts = query.split(lengths, dim=2)
    key_parts = key.split(lengths, dim=2)
    value_parts = value.split(lengths, dim=2)
    outputs: list[Tensor] = [query] * len(lengths)
    for length in sorted(set(lengths)):
        indices = [index for index, other in enumerate(lengths) if other == length]
        batch = [
            torch.cat([parts[index] for index in indices])
            for parts in (query_parts, key_parts, value_parts)
        ]
        batch_plan = plan
        if points is not None:
            point_parts = points.split(lengths, dim=-2)
            copies = [point_parts[index].expand(query.shape[0], -1, -1) for index in indices]
            batch_plan = replace(plan, positions=Positions(points=torch.cat(copies)))
        batch_plan = batch_plan.with_backend(backend, *batch)
        output = batch_plan.attend(*batch, key_mask=None, query_mask=None)
        for index, part in zip(indices, output.chunk(len(indices)), strict=True):
            outputs[index] = part
    return torch.cat(outputs, dim=2)


def may_overflow_in_float32(tensor: Tensor) -> bool:
    """Return True if a float32 tensor has elements so large that their products may overflow."""
    if tensor.dtype != torch.float32:
        return False
    tensor = tensor.detach()
    # The norm is an upper bound of the largest absolute value, and four times faster to compute.
    if tensor.numel() == 0 or torch.linalg.vector_norm(tensor) <= LARGEST_IN_FLOAT32:
        return False
    return max(float(tensor.amax()), -float(tensor.amin())) > LARGEST_IN_FLOAT32


def _replace_nonfinite(
    query: Queries, key: Keys, value: Values, is_causal: bool, can_read: bool
) -> tuple[Queries, Keys, Values, Bool[Tensor, "batch heads queries"] | None]:
    """Replace NaN and infinity in the inputs by 0, and return a mask of outputs that become NaN.

    - NaN or infinity in a query makes its output NaN.
    - In causal attention, NaN or infinity in a key or value makes the outputs of this token and of
      all later tokens NaN.
    - In bidirectional attention, keys and values are not replaced, because NaN in one of them makes
      all outputs NaN anyway.

    Args:
        query: Queries.
        key: Keys.
        value: Values.
        is_causal: True for causal attention.
        can_read: True if the elements can be read without delay.

    Returns:
        Queries, keys, values, and the mask, or None if all inputs are finite.
    """
    tensors = (query, key, value)
    # A sum is finite only if all elements are. If it overflows, the elements are checked below.
    if can_read and all(bool(tensor.detach().sum().isfinite()) for tensor in tensors):
        return query, key, value, None
    is_bad = [~tensor.detach().abs().amax(dim=-1).isfinite() for tensor in tensors]
    query = query.masked_fill(is_bad[0][..., None], 0.0)
    if not is_causal:
        return query, key, value, is_bad[0]
    is_bad_key = is_bad[1] | is_bad[2]
    key = key.masked_fill(is_bad_key[..., None], 0.0)
    value = value.masked_fill(is_bad_key[..., None], 0.0)
    return query, key, value, is_bad[0] | (is_bad_key.cumsum(dim=-1) > 0)
