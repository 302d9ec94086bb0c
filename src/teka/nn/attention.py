"""Multi-head attention whose weights combine the content and the relative positions of tokens."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Real
from torch import Tensor, nn

from teka._compat import ProcessGroup
from teka.checks import check_sizes, check_tensor_sizes
from teka.errors import wrong_argument, wrong_value
from teka.functional import Constant, ContentKernel, DecodingState, decode
from teka.functional.backends.costs import select_backend
from teka.functional.shapes import KeyMask, Outputs
from teka.grid import Grid, GridLike, active_grid_and_prefix, as_grid
from teka.nn.gating import OutputGate
from teka.nn.head_groups import HeadGroup, count_position_heads, make_kernels
from teka.nn.inputs import (
    AllKeys,
    AllQueries,
    AllValues,
    Context,
    Tokens,
    check_layer_input,
    prepare_attention_inputs,
)
from teka.nn.local_conv import ValueConvolution
from teka.nn.options import AttentionOptions, backend_without_relative_kernel, merge_options
from teka.nn.qk_norm import make_query_key_norm
from teka.nn.relative import DEFAULT_NUM_AXES, LearnedRelativeKernel

Token = Float[Tensor, "batch *tokens dim"]
States = tuple[DecodingState, ...]


@dataclass(frozen=True)
class ProcessGroupHolder:
    """Holder of a process group, so that a layer with a process group can be copied.

    Process groups themselves cannot be copied. The holder and its copies share the same group.
    """

    group: ProcessGroup

    def __deepcopy__(self, memo: object) -> "ProcessGroupHolder":
        return self


class Attention(nn.Module):
    """Multi-head attention whose weights depend on the content and relative positions of tokens.

        out_i = Σ_j κ(q_i, k_j) c(x_i − x_j; q_i) v_j / Σ_j κ(q_i, k_j) c(x_i − x_j; q_i)

    The content kernel κ is a similarity of the query q_i and the key k_j. The relative kernel c is
    a weight that depends on the offset between their positions x_i and x_j. By default, these are
    "squared_relu" and "rotary". The cost then grows linearly with the number of tokens, and no
    output of a head is larger than 1/0.3 times the largest value v_j.

    A layer with a relative kernel needs the positions of the tokens: a grid or coordinates. Dropout
    acts on the output, because fast algorithms have no matrix of attention weights. The layer
    creates only the projections that its kernels use. For example, a kernel that does not depend on
    content needs no queries and keys.

    >>> import torch, teka
    >>> layer, ring = teka.nn.Attention(16, 2, num_axes=1), teka.Grid(12, periodic=True)
    >>> tokens = torch.randn(1, 12, 16)
    >>> torch.allclose(layer(tokens.roll(5, 1), ring), layer(tokens, ring).roll(5, 1), atol=1e-5)
    True

    Args:
        dim: Size of a token.
        heads: Number of heads.
        options: An `AttentionOptions`. Keyword arguments replace its values.
        dim_head: Size of a head. Default: dim / heads.
        kernel: Content kernel: a name of `teka.functional.KERNELS`, an instance, `RandomFeatures`
            or `LearnedFeatures`. Default: "squared_relu".
        relative: Relative kernel: a name of `teka.functional.RELATIVES`, a
            `LearnedRelativeKernel`, or None. Default: "rotary".
        num_features: Number of random features m, for kernels that have them. Default: ⌊d ln d⌋.
        projection: Distribution of random features: "orthogonal", "independent" or "fixed_norm".
            Default: "orthogonal".
        causal: If True, no token attends to a later token. Default: False.
        context_dim: Size of the tokens of `context`. Default: dim.
        qkv_bias: If True, queries, keys and values have a bias. Default: True.
        dropout: Dropout probability of the output. Default: 0.
        backend: "auto", "dense", "linear", "toeplitz", "rings", "fft" or "windows". Default:
            "auto".
        num_axes: Number of axes of the grids. Default: that of the first call, or of a loaded state
            dict. If the grids do not have two axes, it is required for `rotation_joint`, a value
            convolution, `torch.compile`, distributed training or a moving average of the model.
        position_heads: Number of heads that attend by position alone. These are the last heads. The
            other heads then attend by content alone. With 0, both kernels act in every head.
            Default: half of the heads for `clipped` and `clipped_features`, otherwise 0.
        num_waves: Number of frequencies F of relative="fourier".
        rotary_normalizer: Denominator of relative="rotary", see `teka.functional.Rotary`. Default:
            "mixed".
        query_key: "plain", "normalized" (RMS norm of queries and keys, with a learned gain) or
            "centred" (the mean of the keys is subtracted). Default: "plain".
        gate: If True, multiply the outputs of the heads by a sigmoid of a projection of the token.
            Default: False.
        value_convolution: Side in cells of a depthwise convolution of the values, which is added to
            the output of the heads, or None. Default: None.
        values: "projected", or "tokens" to use the tokens themselves as values, without a
            projection (Cordonnier et al. 2020, eq. 11). Default: "projected".

    Raises:
        TypeError: A keyword is not the name of an option.
        ValueError: An option is out of range, or the other options make it ineffective.
    """

    def __init__(
        self, dim: int, heads: int, options: AttentionOptions | None = None, **keywords: Any
    ) -> None:
        super().__init__()
        check_sizes({"dim": dim, "heads": heads})
        options = merge_options(type(self).__name__, options, keywords)
        if options.dim_head is None and dim % heads:
            raise wrong_value("heads", heads, f"a divisor of dim = {dim}, unless dim_head is set")
        self.dim = dim
        self.heads = heads
        self.dim_head = dim // heads if options.dim_head is None else options.dim_head
        self.context_dim = dim if options.context_dim is None else options.context_dim
        head_sizes = {"heads": heads, "dim_head": self.dim_head}
        check_tensor_sizes({"dim": dim, **head_sizes})
        check_tensor_sizes({"context_dim": self.context_dim, **head_sizes})
        self.dim_value = self.dim_head if options.values == "projected" else self.context_dim
        self.causal = options.causal
        self.backend = options.backend
        self.token_group: ProcessGroupHolder | None = None  # set by `shard_tokens`
        self.position_heads = count_position_heads(options.position_heads, options.relative, heads)
        self.content_heads = heads - self.position_heads
        self.kernel, self.relative = make_kernels(
            options, heads, self.dim_head, self.position_heads
        )
        self._make_projections(options)
        self.dropout = nn.Dropout(options.dropout)
        self.gate = OutputGate(dim, heads, self.dim_value) if options.gate else None
        self.value_convolution: ValueConvolution | None = None
        if options.value_convolution is not None:
            self.value_convolution = ValueConvolution(
                heads,
                self.dim_value,
                options.value_convolution,
                options.num_axes or DEFAULT_NUM_AXES,
            )

    def _make_projections(self, options: AttentionOptions) -> None:
        """Create the projections whose outputs are used."""
        kernel = self.current_kernel()
        kernel_class = None if self.relative is None else self.relative.kernel_class
        num_keys = self.content_heads if kernel.uses_content else 0
        num_queries = num_keys
        if kernel_class is not None and kernel_class.uses_query:
            num_queries = num_keys + self.position_heads if self.position_heads else self.heads
        self.query_key = make_query_key_norm(options.query_key, num_keys, self.dim_head)
        # A vector that is added to all keys cancels in the softmax, unless positions rotate the
        # keys.
        is_rotated = kernel_class is not None and kernel_class.rotates_features
        bias_cancels = kernel.is_softmax and not is_rotated
        if bias_cancels and self.query_key.removes_bias:
            hint = f"The mean of the keys has no effect with kernel={kernel.name!r}."
            raise wrong_value("query_key", options.query_key, "'plain' or 'normalized'", hint)
        has_key_bias = options.qkv_bias and not self.query_key.removes_bias
        if bias_cancels and not self.query_key.has_effect:
            has_key_bias = False
        self.query: nn.Linear | None = None
        self.key: nn.Linear | None = None
        self.value: nn.Linear | None = None
        if num_queries:
            self.query = nn.Linear(self.dim, num_queries * self.dim_head, bias=options.qkv_bias)
        if num_keys:
            self.key = nn.Linear(self.context_dim, num_keys * self.dim_head, bias=has_key_bias)
        if options.values == "projected":
            self.value = nn.Linear(
                self.context_dim, self.heads * self.dim_head, bias=options.qkv_bias
            )
        self.output = nn.Linear(self.heads * self.dim_value, self.dim)

    @property
    def equivariance(self) -> dict[str, str]:
        """Transformations to which the layer is equivariant, such as {"shift": "exact"}.

        The value is "in expectation" if the layer is equivariant only on average over random draws
        of its features.
        """
        if self.relative is not None:
            return {"shift": self.relative().equivariance}
        if self.causal or self.value_convolution is not None:
            return {"shift": "exact"}
        return {"shift": "exact", "permutation": "exact"}

    def current_kernel(self) -> ContentKernel:
        """Return the content kernel with the current parameters."""
        return self.kernel if isinstance(self.kernel, ContentKernel) else self.kernel()

    def head_groups(self) -> tuple[HeadGroup, ...]:
        """Return the heads of the layer, grouped by their kernels.

        Usually, there is one group of all heads. Heads that attend by position alone form a second
        group. The kernels have the current parameters of the layer.
        """
        kernel = self.current_kernel()
        relative = None if self.relative is None else self.relative()
        uses_query = relative is not None and relative.uses_query
        sizes = (self.dim_head, self.dim_value, self.causal)
        content = slice(0, self.content_heads)
        keys = content if kernel.uses_content else None
        if self.position_heads == 0:
            queries = content if uses_query else keys
            return (HeadGroup(kernel, relative, content, self.backend, queries, keys, *sizes),)
        position = slice(self.content_heads, self.heads)
        position_queries = slice(-self.position_heads, None) if uses_query else None
        content_backend = backend_without_relative_kernel(self.backend)
        return (
            HeadGroup(kernel, None, content, content_backend, keys, keys, *sizes),
            HeadGroup(Constant(), relative, position, self.backend, position_queries, None, *sizes),
        )

    def project(
        self, tokens: Tokens, context: Context | None = None, key_mask: KeyMask = None
    ) -> tuple[AllQueries | None, AllKeys | None, AllValues]:
        """Project tokens to the queries, keys and values of all heads.

        Queries or keys are None if no head uses them, for example if all weights depend on
        positions alone. With a context, keys and values are projections of the context.
        """
        context = tokens if context is None else context
        query = None if self.query is None else self._split_heads(self.query(tokens))
        key = None if self.key is None else self._split_heads(self.key(context))
        if query is not None and key is not None and self.query_key.has_effect:
            num_keys = key.shape[1]
            content_query, key = self.query_key(query[:, :num_keys], key, key_mask)
            query = torch.cat([content_query, query[:, num_keys:]], dim=1)
        if self.value is not None:
            return query, key, self._split_heads(self.value(context))
        # Under autocast, projections have another dtype than tokens.
        shared = context if query is None else context.to(query.dtype)
        return query, key, shared[:, None].expand(-1, self.heads, -1, -1)

    def _split_heads(self, projected: Tensor) -> Tensor:
        return projected.unflatten(-1, (-1, self.dim_head)).transpose(1, 2)

    def forward(
        self,
        tokens: Float[Tensor, "batch tokens dim"],
        grid: GridLike | None = None,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
        num_prefix_tokens: int = 0,
        num_queries: int | None = None,
        *,
        positions: Real[Tensor, "*batch placed axes"] | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
        cu_seqlens: Int[Tensor, "sequences"] | None = None,
        context: Float[Tensor, "batch keys context_dim"] | None = None,
        context_grid: GridLike | None = None,
        context_positions: Real[Tensor, "*key_batch placed_keys axes"] | None = None,
    ) -> Float[Tensor, "batch queries dim"]:
        """Compute multi-head attention of the tokens to themselves, or to a context.

        If `key_mask` excludes all keys of a sample, the outputs of its heads are 0, so that its
        output is the bias of the output projection.

        Args:
            tokens: Tokens, shape (B, L, dim).
            grid: Grid of the tokens after the prefix: a `Grid`, a shape or a length. A layer with a
                relative kernel needs a grid, `positions` or a surrounding `teka.on`.
            key_mask: True for tokens that may be attended to, shape (B, L), or (B, L_k) with a
                context.
            num_prefix_tokens: Number of first tokens without a position, such as a class token.
            num_queries: If given, compute only the outputs of the first `num_queries` tokens. Not
                available with a relative kernel, a context or causality.
            positions: Coordinates in physical units instead of a grid, shape (L, n) or (B, L, n).
            lengths: Number of tokens of each sample of a padded batch instead of `key_mask`, shape
                (B,), 0 or more. Without a context, the output of the padding is 0.
            cu_seqlens: Boundaries 0, …, L of sequences that are concatenated without padding. Each
                sequence attends to itself. Needs `positions` if the layer has a relative kernel.
            context: Tokens to attend to instead of `tokens`, shape (B, L_k, context_dim).
            context_grid: Grid of the context.
            context_positions: Coordinates of the context instead of a grid.

        Raises:
            ValueError: Shapes or dtypes do not fit, or arguments exclude each other.
        """
        if positions is None:
            grid, num_prefix_tokens = self.resolve_grid(grid, num_prefix_tokens)
        self._check_arguments(num_queries, positions, context, cu_seqlens)
        inputs = prepare_attention_inputs(
            tokens,
            grid=grid,
            key_mask=key_mask,
            num_prefix_tokens=num_prefix_tokens,
            num_queries=num_queries,
            positions=positions,
            lengths=lengths,
            cu_seqlens=cu_seqlens,
            context=context,
            context_grid=context_grid,
            context_positions=context_positions,
            dim=self.dim,
            context_dim=self.context_dim,
            layer=self.output,
            needs_positions=self.relative is not None,
            group=None if self.token_group is None else self.token_group.group,
        )
        if not torch.compiler.is_compiling():
            self.set_num_axes(inputs.positions.num_axes)
        query, key, value = self.project(inputs.tokens, inputs.context, inputs.key_mask)
        outputs = [group.compute_heads(query, key, value, inputs) for group in self.head_groups()]
        output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)
        if self.value_convolution is not None:
            assert grid is None or isinstance(grid, Grid)
            output = output + self.value_convolution(
                value, grid, num_prefix_tokens, inputs.key_mask
            )
        output = self._join_heads(output, inputs.tokens)
        if inputs.query_mask is not None:
            output = output.masked_fill(~inputs.query_mask[..., None], 0.0)
        return output

    def resolve_grid(
        self, grid: GridLike | None, num_prefix_tokens: int
    ) -> tuple[GridLike | None, int]:
        """Return the token grid and the number of prefix tokens that a call of this layer uses.

        Prefix tokens, such as a class token, have no position. If no grid is passed to the call,
        both values come from the surrounding context manager `teka.on`. A shape or length is
        converted to a `Grid`, except for a symbolic length during `torch.export`.
        """
        if grid is not None:
            is_symbolic = isinstance(grid, torch.SymInt) and self.value_convolution is None
            return grid if is_symbolic else as_grid("grid", grid), num_prefix_tokens
        if self.relative is None and self.value_convolution is None:
            return None, num_prefix_tokens
        surrounding_grid, surrounding_prefix = active_grid_and_prefix()
        return surrounding_grid, num_prefix_tokens or surrounding_prefix

    def set_num_axes(self, num_axes: int) -> None:
        """Set the number of axes of the token grid, unless it has been set before.

        A layer that was created without `num_axes` calls this method with the first grid that it
        receives.
        """
        if isinstance(self.relative, LearnedRelativeKernel):
            self.relative.set_num_axes(num_axes)

    def step(
        self,
        token: Token,
        state: States | None = None,
        *,
        position: Real[Tensor, "*batch axes"] | None = None,
    ) -> tuple[Token, States]:
        """Compute causal attention of the next token or tokens, given the state of earlier tokens.

        Use this method to generate a sequence. The cost of a token does not grow with the number of
        earlier tokens. Pass all tokens of a prompt in one call, because that is faster than one
        call for each token.

        Args:
            token: The next token of each sample, shape (B, dim), or the next L tokens, shape
                (B, L, dim).
            state: The state that the previous call returned, or None before the first token.
            position: Position of a single token in physical units, shape (n,) or (B, n). By
                default, token t is at t.

        Returns:
            The output, in the shape of `token`, and the new state.

        Raises:
            ValueError: The layer is not causal, or a kernel has no state of fixed size.
        """
        if not self.causal:
            raise wrong_value("causal", self.causal, "True to decode with the method step")
        check_decoding_tokens(token, self)
        num_axes = 1
        if isinstance(position, Tensor) and position.ndim > 0:
            num_axes = position.shape[-1]
        self.set_num_axes(num_axes)
        groups = self.head_groups()
        check_decoding_states(state, len(groups))
        tokens = token if token.ndim == 3 else token[:, None]
        query, key, value = self.project(tokens)
        outputs = []
        new_states = []
        for index, group in enumerate(groups):
            output, new_state = decode(
                *group.select_heads(query, key, value, tokens.shape[1]),
                None if state is None else state[index],
                kernel=group.kernel,
                relative=group.relative,
                position=position,
            )
            outputs.append(output)
            new_states.append(new_state)
        output = self._join_heads(torch.cat(outputs, dim=1), tokens)
        return output.view(token.shape), tuple(new_states)

    def _join_heads(self, output: Outputs, tokens: Tokens) -> Tokens:
        if self.gate is not None:
            output = output * self.gate(tokens)
        return self.dropout(self.output(output.transpose(1, 2).flatten(2)))

    def chosen_backend(
        self, grid: GridLike | None = None, num_prefix_tokens: int = 0, batch: int = 1
    ) -> str:
        """Return the name of the algorithm (backend) that computes the attention on a grid.

        Backends have the same result but different costs. For example, "dense" computes every pair
        of tokens. If some heads attend by position alone, the result is the backend of these heads.

        Raises:
            ValueError: The backend of the layer cannot compute its kernels on this grid.
        """
        if grid is not None:
            grid = as_grid("grid", grid)
            self.set_num_axes(grid.num_axes)
        group = self.head_groups()[-1]
        costs = group.estimate_costs(grid, num_prefix_tokens=num_prefix_tokens, batch=batch)
        return select_backend(group.backend, costs, self.output.weight.device.type)

    def _check_arguments(
        self,
        num_queries: int | None,
        positions: Tensor | None,
        context: Tensor | None,
        cu_seqlens: Tensor | None,
    ) -> None:
        if self.value_convolution is not None:
            excluded = {
                "num_queries": num_queries,
                "positions": positions,
                "context": context,
                "cu_seqlens": cu_seqlens,
            }
            for argument, value in excluded.items():
                if value is not None:
                    expected = "None for a layer with a value convolution"
                    raise wrong_argument(argument, "a value", expected)
        sees_first_tokens_only = self.relative is None and context is None and not self.causal
        if num_queries is not None and not sees_first_tokens_only:
            hint = "With a relative kernel, a context or causal=True, all outputs are computed."
            raise wrong_value("num_queries", num_queries, "None", hint)


def check_decoding_tokens(token: Tensor, layer: Attention) -> None:
    """Check that the input of `step` has shape (batch, dim) or (batch, tokens, dim)."""
    is_sequence = isinstance(token, Tensor) and token.ndim == 3
    sizes = ("batch", "tokens", layer.dim) if is_sequence else ("batch", layer.dim)
    check_layer_input("token", token, *sizes, layer=layer.output)


def check_decoding_states(state: object, num_states: int) -> None:
    """Check that the argument `state` of a `step` is None or a tuple of `num_states` states."""
    if state is not None and not (isinstance(state, tuple) and len(state) == num_states):
        actual = f"{len(state)} states" if isinstance(state, tuple) else state
        expected = f"None, or the tuple of {num_states} states that the last step returned"
        raise wrong_value("state", actual, expected)
