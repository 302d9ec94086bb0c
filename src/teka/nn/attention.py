"""Multi-head attention with a content kernel and a relative kernel."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from typing_extensions import Unpack

from teka._compat import ProcessGroup
from teka.checks import check_sizes, check_tensor_sizes
from teka.errors import wrong_argument, wrong_value
from teka.functional import Constant, DecodingState, Kernel, decode
from teka.functional.dispatch import select_backend
from teka.functional.shapes import KeyMask
from teka.grid import Grid, GridLike, as_grid, current_grid
from teka.nn.gating import Gate
from teka.nn.heads import HeadGroup, count_position_heads, make_kernels
from teka.nn.inputs import (
    AllKeys,
    AllQueries,
    AllValues,
    Context,
    Tokens,
    check_tokens,
    make_inputs,
)
from teka.nn.local_conv import ValueConvolution
from teka.nn.options import AttentionKeywords, AttentionOptions, takes, without_relative
from teka.nn.projections import join_heads, project_heads
from teka.nn.qk_norm import make_query_key

Token = Float[Tensor, "batch *tokens dim"]
States = tuple[DecodingState, ...]


@dataclass(frozen=True)
class TokenGroup:
    """The processes that tokens are divided over: a copy of a layer has the same ones, which cannot be copied."""

    group: ProcessGroup

    def __deepcopy__(self, memo: object) -> "TokenGroup":
        return self


class Attention(nn.Module):
    """Attention over the tokens of a grid: `teka.functional.attention` between learned projections.

    The relative kernel is a factor of the content kernel in every head, or, with `position_heads`, has the last heads
    to itself: these attend by position alone and have no keys, and the others attend by content alone. A kernel that
    does not look at content has no queries and keys, and softmax, in which a key's bias cancels, has keys without it.

    The defaults, squared relu × rotary, cost O(L), and no output of their heads is larger than 1/0.3 times the largest
    value, whatever the tokens and wherever they are, which rotary has to know (docs/which_kernel.md).

    Dropout acts on the output: fast paths hold no matrix of weights to drop entries of.

    >>> import torch, teka
    >>> layer, ring = teka.nn.Attention(16, 2, num_axes=1), teka.Grid(12, periodic=True)
    >>> tokens = torch.randn(1, 12, 16)
    >>> torch.allclose(layer(tokens.roll(5, 1), ring), layer(tokens, ring).roll(5, 1), atol=1e-5)
    True

    Args:
        dim: Size of a token.
        heads: Number of heads.
        options: Keywords of `AttentionOptions`, where each is described. One without effect is a ValueError.
    """

    @takes(AttentionKeywords)
    def __init__(self, dim: int, heads: int, **options: Unpack[AttentionKeywords]) -> None:
        super().__init__()
        check_sizes({"dim": dim, "heads": heads})
        chosen = AttentionOptions(**options)
        if chosen.dim_head is None and dim % heads:
            raise wrong_value("heads", heads, f"a divisor of dim = {dim}, or dim_head to be given")
        self.dim, self.heads = dim, heads
        self.dim_head = dim // heads if chosen.dim_head is None else chosen.dim_head
        self.context_dim = dim if chosen.context_dim is None else chosen.context_dim
        check_tensor_sizes({"dim": dim, "heads": heads, "dim_head": self.dim_head})
        check_tensor_sizes(
            {"context_dim": self.context_dim, "heads": heads, "dim_head": self.dim_head}
        )
        self.dim_value = self.dim_head if chosen.values == "projected" else self.context_dim
        self.causal, self.backend = chosen.causal, chosen.backend
        self.token_group: TokenGroup | None = (
            None  # over which tokens are divided; see `shard_tokens`
        )
        self.position_heads = count_position_heads(chosen.position_heads, chosen.relative, heads)
        self.content_heads = heads - self.position_heads
        self.kernel, self.relative = make_kernels(chosen, heads, self.dim_head, self.position_heads)
        self._make_maps(chosen)
        self.dropout = nn.Dropout(chosen.dropout)
        self.gate = Gate(dim, heads, self.dim_value) if chosen.gate else None
        side, num_axes = chosen.value_convolution, chosen.num_axes
        self.value_convolution = (
            None if side is None else ValueConvolution(heads, self.dim_value, side, num_axes)
        )

    def _make_maps(self, chosen: AttentionOptions) -> None:
        """The linear maps, of which a layer has those whose numbers something looks at."""
        present, width = self._present_kernel(), self.dim_head
        key_heads = query_heads = self.content_heads if present.uses_content else 0
        if self.relative is not None and self.relative.kernel_class.uses_query:
            query_heads = key_heads + self.position_heads if self.position_heads else self.heads
        self.query_key = make_query_key(chosen.query_key, key_heads, width)
        # What is added to all keys cancels in the softmax, unless they are rotated by their positions.
        is_rotated = self.relative is not None and self.relative.kernel_class.rotates_features
        cancels = present.is_softmax and not is_rotated
        if cancels and self.query_key.removes_bias:
            raise wrong_value(
                "query_key",
                chosen.query_key,
                "'plain' or 'normalized'; the mean cancels in the softmax",
            )
        key_bias = (
            chosen.qkv_bias
            and not self.query_key.removes_bias
            and (self.query_key.acts or not cancels)
        )
        self.query = (
            nn.Linear(self.dim, query_heads * width, bias=chosen.qkv_bias) if query_heads else None
        )
        self.key = (
            nn.Linear(self.context_dim, key_heads * width, bias=key_bias) if key_heads else None
        )
        projects = chosen.values == "projected"
        self.value = (
            nn.Linear(self.context_dim, self.heads * width, bias=chosen.qkv_bias)
            if projects
            else None
        )
        self.output = nn.Linear(self.heads * self.dim_value, self.dim)

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
        kernel, backend = self._present_kernel(), self.backend
        relative = None if self.relative is None else self.relative()
        uses_query = self.relative is not None and self.relative.kernel_class.uses_query
        sizes = (self.dim_head, self.dim_value, self.causal)
        content = slice(0, self.content_heads)
        keys = content if kernel.uses_content else None
        if self.position_heads == 0:
            return (
                HeadGroup(
                    kernel,
                    relative,
                    content,
                    backend,
                    content if uses_query else keys,
                    keys,
                    *sizes,
                ),
            )
        own = slice(-self.position_heads, None) if uses_query else None
        return (
            HeadGroup(kernel, None, content, without_relative(backend), keys, keys, *sizes),
            HeadGroup(
                Constant(), relative, slice(content.stop, self.heads), backend, own, None, *sizes
            ),
        )

    def project(
        self, tokens: Tokens, context: Context | None = None, key_mask: KeyMask = None
    ) -> tuple[AllQueries | None, AllKeys | None, AllValues]:
        """Return queries, keys of the content heads, and values; None for what the layer does not have."""
        context = tokens if context is None else context
        query, key, value = (
            None if projection is None else project_heads(projection, source, self.dim_head)
            for projection, source in (
                (self.query, tokens),
                (self.key, context),
                (self.value, context),
            )
        )
        if query is not None and key is not None and self.query_key.acts:
            by_content, key = self.query_key(query[:, : key.shape[1]], key, key_mask)
            query = torch.cat([by_content, query[:, key.shape[1] :]], dim=1)
        if value is None:
            # In mixed precision linear maps have fewer digits than tokens.
            shared = context if query is None else context.to(query.dtype)
            value = shared[:, None].expand(-1, self.heads, -1, -1)
        return query, key, value

    def forward(
        self,
        tokens: Float[Tensor, "batch tokens dim"],
        grid: GridLike | None = None,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
        num_prefix_tokens: int = 0,
        num_queries: int | None = None,
        *,
        positions: Float[Tensor, "*batch placed axes"] | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
        cu_seqlens: Int[Tensor, "sequences"] | None = None,
        context: Float[Tensor, "batch keys context_dim"] | None = None,
        context_grid: GridLike | None = None,
        context_positions: Float[Tensor, "*key_batch placed_keys axes"] | None = None,
    ) -> Float[Tensor, "batch queries dim"]:
        """Attend; a ValueError for shapes that do not fit.

        Where a sample has no key, because its mask keeps none, its heads give 0 and its output is the bias of the last
        linear map. With `lengths` of 0 in place of the mask its output is 0. Both hold eager and compiled.

        Args:
            tokens: Tokens that attend, shape (B, L, dim).
            grid: Grid of the tokens after the prefix: a `Grid`, a shape or a length. A layer with a relative kernel
                needs this argument, `positions` or a surrounding `teka.on`.
            key_mask: True where a token may be attended to, shape (B, L), or of the context's length.
            num_prefix_tokens: Number of first tokens without a position, such as a class token.
            num_queries: Number of first tokens that attend, if not all; without relative kernel, context, causality.
            positions: Instead of a grid, positions in physical units, shape (L, n) or (B, L, n).
            lengths: Instead of `key_mask`, the number of tokens of every sample of a ragged batch, shape (B,): what is
                after them is attended to by nothing, and its own output is 0 unless there is a context. It may be 0.
            cu_seqlens: Where sequences of different lengths begin that stand one after another in a row of tokens, and
                where the last one ends, 0, …, L: each sees itself alone, without padding; with `positions`.
            context: Tokens to attend to instead of themselves, shape (B, L_k, context_dim). The output has the queries'
                places: with a finer or coarser `context_grid` the layer changes resolution.
            context_grid: The grid of the context.
            context_positions: Instead of a grid, positions of the context.
        """
        self._check(num_queries, positions, context, cu_seqlens)
        if positions is None:
            grid, num_prefix_tokens = self.present_places(grid, num_prefix_tokens)
        where = (positions, lengths, context, context_grid, context_positions)
        scene = make_inputs(
            *(tokens, grid, key_mask, num_prefix_tokens, num_queries, *where),
            dims=(self.dim, self.context_dim),
            first=self.output,
            needs_places=self.relative is not None,
            group=None if self.token_group is None else self.token_group.group,
            cu_seqlens=cu_seqlens,
        )
        query, key, value = self.project(scene.tokens, scene.context, scene.key_mask)
        groups = self.head_groups()
        parts = [group.part_of(query, key, value, scene.tokens.shape[1]) for group in groups]
        mixed = [group.attend(*part, scene) for group, part in zip(groups, parts, strict=True)]
        joined = mixed[0] if len(mixed) == 1 else torch.cat(mixed, dim=1)
        if self.value_convolution is not None:
            joined = joined + self.value_convolution(value, grid, num_prefix_tokens, scene.key_mask)
        output = self._join(joined, scene.tokens)
        return (
            output
            if scene.query_mask is None
            else output.masked_fill(~scene.query_mask[..., None], 0.0)
        )

    def present_places(
        self, grid: GridLike | None, num_prefix_tokens: int
    ) -> tuple[Grid | None, int]:
        """Return the grid and the prefix of a call, or those of `teka.on` if the layer needs a grid and has none."""
        if grid is not None:
            return as_grid("grid", grid), num_prefix_tokens
        if self.relative is None and self.value_convolution is None:
            return None, num_prefix_tokens
        present, prefix = current_grid()
        return present, num_prefix_tokens or prefix

    def step(
        self,
        token: Token,
        state: States | None = None,
        *,
        position: Float[Tensor, "*batch axes"] | None = None,
    ) -> tuple[Token, States]:
        """Attend causally from the next token, or from several, given the state of the earlier tokens.

        The cost of a token does not grow with the number of earlier tokens. A prompt is read fastest in one call.

        Args:
            token: The next token of each sample, shape (B, dim), or the next L tokens, shape (B, L, dim).
            state: The state that the previous call returned, or None before the first token.
            position: Position of a single token in physical units, shape (n,) or (B, n). By default, token t of a
                sequence is at t.

        Returns:
            The output, in the shape of `token`, and the new state.

        Raises:
            ValueError: The layer is not causal, or has a kernel without a recurrent state.
        """
        if not self.causal:
            raise wrong_value(
                "causal", self.causal, "True for a layer that is to decode step by step"
            )
        check_next_tokens(token, self)
        groups = self.head_groups()
        if state is not None and not (isinstance(state, tuple) and len(state) == len(groups)):
            came = f"{len(state)} states" if isinstance(state, tuple) else state
            raise wrong_value(
                "state", came, f"None, or the tuple of {len(groups)} that the last step returned"
            )
        before = (None,) * len(groups) if state is None else state
        tokens = token if token.ndim == 3 else token[:, None]
        projected = self.project(tokens)
        steps = [
            decode(
                *group.part_of(*projected, tokens.shape[1]),
                one,
                kernel=group.kernel,
                relative=group.relative,
                position=position,
            )
            for group, one in zip(groups, before, strict=True)
        ]
        mixed, states = zip(*steps, strict=True)
        return self._join(torch.cat(mixed, dim=1), tokens).view(token.shape), tuple(states)

    def _join(self, mixed: Tensor, tokens: Tensor) -> Tensor:
        if self.gate is not None:
            mixed = mixed * self.gate(tokens)
        return self.dropout(join_heads(self.output, mixed))

    def chosen_backend(
        self, grid: Grid | None = None, num_prefix_tokens: int = 0, batch: int = 1
    ) -> str:
        """The backend of the heads with the relative kernel, or of all without one; a ValueError if it cannot."""
        group = self.head_groups()[-1]
        costs = group.costs(grid, num_prefix_tokens=num_prefix_tokens, batch=batch)
        return select_backend(group.backend, costs, self.output.weight.device.type)

    def _check(
        self,
        num_queries: int | None,
        positions: Tensor | None,
        context: Tensor | None,
        cu_seqlens: Tensor | None,
    ) -> None:
        if self.value_convolution is not None:
            others = {
                "num_queries": num_queries,
                "positions": positions,
                "context": context,
                "cu_seqlens": cu_seqlens,
            }
            for argument, given in others.items():
                if given is not None:
                    raise wrong_argument(
                        argument, "a value", "None for a layer with a value convolution"
                    )
        if num_queries is not None and (
            self.relative is not None or context is not None or self.causal
        ):
            raise wrong_value(
                "num_queries", num_queries, "None with a relative kernel, a context or causality"
            )


def check_next_tokens(token: Tensor, layer: Attention) -> None:
    """Check the argument `token` of `Attention.step`: one token of each sample, or several."""
    is_sequence = isinstance(token, Tensor) and token.ndim == 3
    sizes = ("batch", "tokens", layer.dim) if is_sequence else ("batch", layer.dim)
    check_tokens("token", token, *sizes, first=layer.output)
