"""Multi-head attention with a content kernel and a relative kernel."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from teka import functional
from teka.checks import WHOLE, check_flags, check_name, check_sizes, check_tensor, is_number, is_whole
from teka.errors import wrong_value
from teka.functional.backend import BACKENDS, Workload, backend_costs, choose_backend
from teka.functional.backend.cost import Cost
from teka.functional.decode import DecodingState, decode
from teka.functional.eager import is_plain_eager_on_cpu
from teka.functional.kernel import FeatureKernel, Kernel
from teka.functional.kernel.local import LocalKernel
from teka.functional.placement import Placement, Sites, check_mask, check_sites, length_mask, make_sites
from teka.grid import Grid
from teka.nn.content_kernel import ContentKernel, make_content_kernel
from teka.nn.gate import Gate
from teka.nn.head_group import HeadGroup, count_position_heads, make_head_groups
from teka.nn.heads import join_heads, project_heads, project_heads_first
from teka.nn.layer_warnings import warn_of_collapse, warn_of_large_output
from teka.nn.query_key import PlainQueryKey, make_query_key
from teka.nn.random_features import RandomFeatures
from teka.nn.relative import RelativeModule, Rotary, RotationJoint, make_relative_module
from teka.nn.tokens import check_tokens
from teka.nn.value_convolution import ValueConvolution

VALUES = ("projected", "tokens")


class Attention(nn.Module):
    """Attention over the tokens of a grid: `teka.functional.attention` between learned projections.

    The relative kernel is a factor of the content kernel in every head, or, with `position_heads`, has the last heads
    to itself: these attend by position alone and have no keys, and the others attend by content alone. `clipped` takes
    half of the heads unless told otherwise. A kernel that does not look at content has no queries and keys at all, and
    the softmax kernel, in which a key's bias cancels, has keys without bias.

    The defaults, squared relu × rotary, cost O(L), and no output of their heads is larger than 1/0.3 times the largest
    value, whatever the tokens. How well they learn beside softmax and others: docs/which_kernel.md.
    Like every relative kernel, rotary needs to know where the tokens are.

    Where no bound of the outputs is promised (by a kernel with negative weights, or rotary with its denominator of
    features) a layer reads the size of every output, for which a GPU is waited for, until it has warned once, with
    `LargeOutputWarning`, of heads' outputs more than 1,000 times as large as the largest value. Other layers, the
    default among them, spend no time on it. Compiled graphs are not looked at, nor `step`, which has no earlier values.

    Dropout acts on the output: fast paths hold no matrix of weights to drop entries of.

    Args:
        dim: Size of a token.
        heads: Number of heads.
        dim_head: Size of a head, dim / heads by default.
        kernel: Content kernel, a name of `teka.functional.KERNELS`, an instance, a `RandomFeatures` or a
            `LearnedFeatures`.
        relative: Relative kernel, a name of `teka.functional.RELATIVES`, a module such as `teka.nn.Rotation`, or None
            for attention by content alone.
        num_features: Number of random features m, ⌊d ln d⌋ by default; only for kernels that have them.
        causal: Whether no token sees a later one, by their order.
        context_dim: Size of the tokens that are attended to where they are others (`context`), dim by default.
        qkv_bias: Whether queries, keys and values have a bias.
        dropout: Probability of dropping a number of the output in training.
        backend: "auto", "dense", "linear", "toeplitz", "rings" or "fft".
        num_axes: Number of axes of the grids to come, for relative kernels given by name and a value convolution.
        position_heads: Number of last heads that attend by position alone, while the others attend by content alone;
            with 0 both kernels act in every head. By default half of the heads of `clipped` and 0 of the others'.
        num_waves: Number of waves F of relative="fourier".
        rotary_normalizer: What the denominator of relative="rotary" is made of, "mixed" by default; see
            `teka.functional.Rotary` for the others and their bounds. Not for the softmax kernel, which has its own.
        query_key: What is done to queries and keys: "plain", "normalized" (over their root mean square, times a learned
            gain) or "centred" (keys less their mean).
        gate: Whether the heads' output is multiplied by a sigmoid of a linear map of the token; see `Gate`.
        value_convolution: Side in cells of a depthwise convolution of the values over the grid, which is added to the
            heads' output; None for no convolution. See `ValueConvolution`.
        values: What the heads take means of: "projected" (a linear map of the tokens for each head) or "tokens" (the
            tokens themselves, whole, in every head, so that the output map has a matrix of context_dim × dim a head; a
            map of the values before it would be merged into it: Cordonnier et al. 2020, eq. 11).

    Raises:
        ValueError: Sizes that do not fit, an unknown name, or an option that would have no effect.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        dim_head: int | None = None,
        kernel: str | ContentKernel = "squared_relu",
        relative: str | RelativeModule | None = "rotary",
        num_features: int | None = None,
        causal: bool = False,
        context_dim: int | None = None,
        qkv_bias: bool = True,
        dropout: float = 0.0,
        backend: str = "auto",
        num_axes: int = 2,
        position_heads: int | None = None,
        num_waves: int | None = None,
        rotary_normalizer: str | None = None,
        query_key: str = "plain",
        gate: bool = False,
        value_convolution: int | None = None,
        values: str = "projected",
    ) -> None:
        super().__init__()
        check_sizes({"dim": dim, "heads": heads, "num_axes": num_axes})
        sizes = {"dim_head": dim_head, "context_dim": context_dim, "num_features": num_features, "num_waves": num_waves}
        check_sizes(sizes, or_none=True)
        check_flags({"causal": causal, "qkv_bias": qkv_bias, "gate": gate})
        if dim_head is None and dim % heads:
            raise wrong_value("heads", heads, f"a divisor of dim = {dim}, or dim_head to be given")
        check_name("backend", backend, BACKENDS)
        check_name("values", values, VALUES)
        if not (is_number(dropout) and 0 <= dropout < 1):
            raise wrong_value("dropout", dropout, "a probability of at least 0 and below 1")
        self.dim, self.heads = dim, heads
        self.dim_head = dim // heads if dim_head is None else dim_head
        self.context_dim = dim if context_dim is None else context_dim
        self.causal = causal
        self.backend = backend
        self.warns_of_large_output = True  # until it has
        self.position_heads = count_position_heads(position_heads, relative, heads)
        self.content_heads = heads - self.position_heads
        self.kernel = make_content_kernel(
            kernel,
            relative=relative,
            content_heads=self.content_heads,
            dim_head=self.dim_head,
            num_features=num_features,
            num_axes=num_axes,
        )
        present = self._present_kernel()
        self.relative = make_relative_module(
            relative,
            num_axes=num_axes,
            heads=self.position_heads or heads,
            dim_head=self.dim_head,
            num_features=num_features,
            kernel_features=present.num_features(self.dim_head)
            if isinstance(present, FeatureKernel) and relative == "rotary"
            else self.dim_head,
            num_waves=num_waves,
            rotary_normalizer=rotary_normalizer,
        )
        if rotary_normalizer is not None and not isinstance(present, FeatureKernel):
            expected = f"None with kernel={present.name!r}, whose denominator is the sum of its weights"
            raise wrong_value("rotary_normalizer", rotary_normalizer, expected)
        key_heads = self.content_heads if present.uses_content else 0
        query_heads = key_heads
        if self.relative is not None and self.relative.uses_query:
            query_heads = key_heads + self.position_heads if self.position_heads else heads
        self.query_key = make_query_key(query_key, key_heads, self.dim_head, causal=causal)
        # What is added to all keys cancels in the softmax, unless they are turned by their positions.
        cancels = isinstance(present, functional.Softmax) and not isinstance(self.relative, Rotary)
        if cancels and query_key == "centred":
            raise wrong_value("query_key", query_key, "'plain' or 'normalized': the mean cancels in the softmax")
        cancels = query_key == "centred" or (cancels and query_key == "plain")
        width = self.dim_head
        self.query = nn.Linear(dim, query_heads * width, bias=qkv_bias) if query_heads else None
        self.key = nn.Linear(self.context_dim, key_heads * width, bias=qkv_bias and not cancels) if key_heads else None
        self.dim_value = width if values == "projected" else self.context_dim
        self.value = nn.Linear(self.context_dim, heads * width, bias=qkv_bias) if values == "projected" else None
        self.output = nn.Linear(heads * self.dim_value, dim)
        self.dropout = nn.Dropout(dropout)
        self.gate = Gate(dim, heads, self.dim_value) if gate else None
        if value_convolution is not None and causal:
            raise wrong_value("value_convolution", value_convolution, "None with causal=True: it sees later tokens")
        self.value_convolution = (
            None if value_convolution is None else ValueConvolution(heads, self.dim_value, value_convolution, num_axes)
        )

    @property
    def equivariance(self) -> dict[str, str]:
        """What is kept of outputs when tokens move, by the movement: "exact", or "in expectation" over draws."""
        if self.relative is not None:
            return {"shift": self.relative().equivariance}
        is_placed = self.causal or self.value_convolution is not None
        return {"shift": "exact"} if is_placed else {"shift": "exact", "permutation": "exact"}

    def _present_kernel(self) -> Kernel:
        return self.kernel if isinstance(self.kernel, Kernel) else self.kernel()

    def head_groups(self) -> tuple[HeadGroup, ...]:
        """The heads by what computes them, the ones with the relative kernel last."""
        kernel, relative = self._present_kernel(), None if self.relative is None else self.relative()
        return make_head_groups(
            kernel,
            relative,
            heads=self.heads,
            position_heads=self.position_heads,
            uses_query=self.relative is not None and self.relative.uses_query,
            backend=self.backend,
        )

    def project(
        self,
        tokens: Float[Tensor, "batch tokens dim"],
        context: Float[Tensor, "batch keys context_dim"] | None = None,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
    ) -> tuple[
        Float[Tensor, "batch query_heads tokens dim_head"] | None,
        Float[Tensor, "batch content_heads keys dim_head"] | None,
        Float[Tensor, "batch heads keys dim_value"],
    ]:
        """Queries, keys and values; None where the layer has none, and keys of the content heads only.

        Heads that attend by position alone have queries only if their relative kernel looks at them.

        Args:
            tokens: Tokens that attend.
            context: Tokens that are attended to, the same by default.
            key_mask: True where one of them may be attended to.
        """
        context = tokens if context is None else context
        turned = isinstance(self.relative, Rotary)
        first = is_plain_eager_on_cpu(tokens, context) and isinstance(self.kernel, LocalKernel) and not turned
        heads_of = project_heads_first if first else project_heads
        query = None if self.query is None else heads_of(self.query, tokens, self.dim_head)
        key = None if self.key is None else heads_of(self.key, context, self.dim_head)
        if query is not None and key is not None and not isinstance(self.query_key, PlainQueryKey):
            by_content, key = self.query_key(query[:, : key.shape[1]], key, key_mask)
            query = torch.cat([by_content, query[:, key.shape[1] :]], dim=1)
        if self.value is None:
            # In mixed precision linear maps have fewer digits than tokens.
            shared = context if query is None else context.to(query.dtype)
            return query, key, shared[:, None].expand(-1, self.heads, -1, -1)
        return query, key, heads_of(self.value, context, self.dim_head)

    def forward(
        self,
        tokens: Float[Tensor, "batch tokens dim"],
        grid: Grid | None = None,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
        num_prefix_tokens: int = 0,
        num_queries: int | None = None,
        *,
        positions: Float[Tensor, "*batch placed axes"] | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
        context: Float[Tensor, "batch keys context_dim"] | None = None,
        context_grid: Grid | None = None,
        context_positions: Float[Tensor, "*key_batch placed_keys axes"] | None = None,
    ) -> Float[Tensor, "batch queries dim"]:
        """Attend.

        Args:
            tokens: Tokens that attend, shape (B, L, dim).
            grid: The grid whose cells they are, after the prefix; with a relative kernel, this or `positions`.
            key_mask: True where a token may be attended to, shape (B, L), or of the context's length.
            num_prefix_tokens: Number of first tokens without a position, such as a class token.
            num_queries: Number of first tokens that attend and are returned, all by default; fewer only without a
                relative kernel, context or causality.
            positions: Instead of a grid, positions in physical units, shape (L, n) or (B, L, n).
            lengths: Instead of `key_mask`, the number of tokens of every sample of a ragged batch, shape (B,): what is
                after them is attended to by nothing, and its own output is 0 unless there is a context.
            context: Tokens to attend to instead of themselves, shape (B, L_k, context_dim). The output has the queries'
                places: with a finer or coarser `context_grid` the layer changes resolution.
            context_grid: The grid of the context.
            context_positions: Instead of a grid, positions of the context.

        Raises:
            ValueError: Shapes that do not fit, or a mask that keeps nothing.
        """
        check_tokens("tokens", tokens, "batch", "tokens", self.dim, first=self.output)
        self._check_context(tokens, context, context_grid, context_positions)
        self._check_places("", tokens, make_sites("", grid, positions), num_prefix_tokens)
        if context is not None:
            self._check_places("context_", context, make_sites("context_", context_grid, context_positions))
        few = num_queries is not None
        if few and (
            self.relative is not None
            or context is not None
            or self.causal
            or not (is_whole(num_queries) and 1 <= num_queries <= tokens.shape[1])
        ):
            expected = f"None, or 1 to {tokens.shape[1]} without a relative kernel, context or causality"
            raise wrong_value("num_queries", num_queries, expected)
        query_mask = None
        if lengths is not None:
            if key_mask is not None:
                raise wrong_value("key_mask and lengths", "both", "at most one of the two")
            check_tensor("lengths", lengths, tokens.shape[0], dtypes=WHOLE)
            key_mask = length_mask(lengths, (tokens if context is None else context).shape[1])
            query_mask = key_mask[:, :num_queries] if context is None else None
        attended_to = tokens if context is None else context
        if key_mask is not None:
            check_mask("key_mask", key_mask, batch=attended_to.shape[0], num_tokens=attended_to.shape[1])
            # What is dropped has no part in what the maps learn either, not even if it is NaN.
            attended_to = attended_to.masked_fill(~key_mask[..., None], 0.0)
            tokens = tokens if query_mask is None else attended_to
        if self.value_convolution is not None:
            for argument, given in (("num_queries", num_queries), ("positions", positions), ("context", context)):
                if given is not None:
                    raise wrong_value(argument, "given", "None for a layer with a value convolution")
        query, key, value = self.project(tokens[:, :num_queries], attended_to, key_mask)
        places = {} if few else {"grid": grid, "positions": positions, "num_prefix_tokens": num_prefix_tokens}
        if context is not None:
            places.update(key_grid=context_grid, key_positions=context_positions)
        mixed = []
        for group in self.head_groups():
            part = group.part_of(query, key, value, tokens[:, :num_queries].shape[1])
            mixed.append(
                functional.attention(
                    *part,
                    kernel=group.kernel,
                    relative=group.relative,
                    key_mask=key_mask,
                    query_mask=query_mask,
                    is_causal=self.causal,
                    backend=group.backend,
                    **(places if group.relative is not None else {}),
                )
            )
            if isinstance(self.kernel, RandomFeatures) and group.heads.start == 0:
                joint = group.relative if isinstance(self.relative, RotationJoint) and context is None else None
                if joint is not None or not isinstance(self.relative, RotationJoint):
                    sites = Sites(grid, positions)
                    warn_of_collapse(self.kernel, *part, relative=joint, sites=sites, key_mask=key_mask)
            may_warn = group.bound is None and self.warns_of_large_output
            if may_warn and warn_of_large_output(group, mixed[-1], part[2], key_mask=key_mask):
                self.warns_of_large_output = False
        joined = mixed[0] if len(mixed) == 1 else torch.cat(mixed, dim=1)
        if self.value_convolution is not None:
            joined = joined + self.value_convolution(value, grid, num_prefix_tokens, key_mask)
        if self.gate is not None:
            joined = joined * self.gate(tokens[:, :num_queries])
        output = self.dropout(join_heads(self.output, joined))
        return output if query_mask is None else output.masked_fill(~query_mask[..., None], 0.0)

    def step(
        self,
        token: Float[Tensor, "batch dim"],
        state: tuple[DecodingState, ...] | None = None,
        *,
        position: Float[Tensor, "*batch axes"] | None = None,
    ) -> tuple[Float[Tensor, "batch dim"], tuple[DecodingState, ...]]:
        """Attend from the next token to those so far and itself, at a cost that does not grow with their number.

        Args:
            token: The token, shape (B, dim).
            state: What the tokens before have left, or None before the first.
            position: Its position in physical units, shape (n,) or (B, n); token t = 0, 1, … of a sequence of one axis
                is at t by default.

        Returns:
            Its output, shape (B, dim), and the state after it.

        Raises:
            ValueError: A layer that is not causal, or a kernel or relative kernel without a state of fixed size.
        """
        if not self.causal:
            raise wrong_value("causal", self.causal, "True for a layer that is to decode step by step")
        check_tokens("token", token, "batch", self.dim, first=self.output)
        groups = self.head_groups()
        if state is not None and not (isinstance(state, tuple) and len(state) == len(groups)):
            came = f"{len(state)} states" if isinstance(state, tuple) else state
            raise wrong_value("state", came, f"None, or the tuple of {len(groups)} that the last step returned")
        tokens = token[:, None]
        query, key, value = self.project(tokens)
        mixed, states = [], []
        for place, group in enumerate(groups):
            output, after = decode(
                *group.part_of(query, key, value, 1),
                None if state is None else state[place],
                kernel=group.kernel,
                relative=group.relative,
                position=position,
            )
            mixed.append(output)
            states.append(after)
        joined = torch.cat(mixed, dim=1)
        if self.gate is not None:
            joined = joined * self.gate(tokens)
        return self.dropout(join_heads(self.output, joined))[:, 0], tuple(states)

    def group_costs(
        self,
        group: HeadGroup,
        grid: Grid | None = None,
        *,
        num_prefix_tokens: int = 0,
        context_grid: Grid | None = None,
    ) -> dict[str, Cost]:
        """Cost of every backend that can compute some heads between the tokens of grids.

        Args:
            group: The heads.
            grid: The grid of the tokens that attend.
            num_prefix_tokens: Number of first tokens without a position.
            context_grid: The grid of the tokens that are attended to, the same by default.
        """
        check_sizes({"num_prefix_tokens": num_prefix_tokens}, 0)
        query = make_sites("", grid, None)
        key = query if context_grid is None else make_sites("context_", context_grid, None)
        placement = Placement(query, key, num_prefix_tokens)
        num_queries, num_keys = (
            num_prefix_tokens + (sites.num_tokens or 1) for sites in (placement.query, placement.key)
        )
        relative = group.relative
        if relative is not None:
            if grid is None:
                raise wrong_value("grid", None, "a teka.Grid for a layer with a relative kernel")
            heads = group.heads.stop - group.heads.start
            relative.check(heads=heads, dim=self.dim_head, num_axes=grid.num_axes, kernel=group.kernel)
            relative = relative.on(placement)
        sizes = (num_queries, num_keys, self.dim_head, self.dim_value)
        return backend_costs(Workload(group.kernel, relative, placement, *sizes, self.causal))

    def chosen_backend(self, grid: Grid | None = None, num_prefix_tokens: int = 0) -> str:
        """Name of the backend that computes the heads with the relative kernel, or all heads if there is none.

        Args:
            grid: The grid of the tokens.
            num_prefix_tokens: Number of first tokens without a position.

        Raises:
            ValueError: The backend asked for cannot compute this layer on this grid.
        """
        group = self.head_groups()[-1]
        costs = self.group_costs(group, grid, num_prefix_tokens=num_prefix_tokens)
        return choose_backend(group.backend, costs, self.output.weight.device.type)

    def _check_context(
        self, tokens: Tensor, context: Tensor | None, context_grid: Grid | None, context_positions: Tensor | None
    ) -> None:
        if context is None:
            for argument, given in (("context_grid", context_grid), ("context_positions", context_positions)):
                if given is not None:
                    raise wrong_value(argument, "given", "None without a context")
            if self.context_dim != self.dim:
                raise wrong_value("context", None, f"tokens of size context_dim = {self.context_dim}")
        else:
            check_tokens("context", context, tokens.shape[0], "tokens", self.context_dim, first=self.output)

    def _check_places(self, argument: str, tokens: Tensor, sites: Sites, num_prefix_tokens: int = 0) -> None:
        check_sizes({"num_prefix_tokens": num_prefix_tokens}, 0)
        if sites.is_known or self.relative is not None:
            check_sites(argument, sites, num_prefix_tokens, batch=tokens.shape[0], num_tokens=tokens.shape[1])
