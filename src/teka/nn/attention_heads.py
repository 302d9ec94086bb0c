"""Multi-head attention without projections, for use within other layers."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import pad

from teka._compat import replace
from teka.checks import check_sizes, check_tensor
from teka.errors import wrong_value
from teka.execution_mode import has_dynamic_size
from teka.functional import ContentKernel, DecodingState, attention, decode
from teka.functional.positions import make_row_positions
from teka.functional.relative.relative_kernel import RelativeKernel
from teka.grid import Grid, GridLike, active_grid_and_prefix, as_grid
from teka.nn.head_groups import join_kernel_names, make_kernels
from teka.nn.options import KERNEL_OPTIONS, AttentionOptions, merge_options
from teka.precision import widest_dtype


class AttentionHeads(nn.Module):
    """Attention with learned kernels, for layers that project queries, keys and values themselves.

    Examples are `MultiheadAttention` and the layers that `teka.convert.replace_attention` creates.
    The module calls `teka.functional.attention`. The relative kernel, a weight that depends on the
    offset between query and key, acts in every head.

    >>> import torch, teka
    >>> heads = teka.nn.AttentionHeads(8, 2, grid=teka.Grid((3, 4)))
    >>> query, key, value = torch.randn(3, 1, 2, 12, 8)
    >>> heads(query, key, value).shape
    torch.Size([1, 2, 12, 8])

    Args:
        dim_head: Size d of queries and keys.
        heads: Number of heads.
        options: An `AttentionOptions`. Keyword arguments replace its values: kernel, relative,
            num_features, projection, backend, num_axes (default: that of the grid, or 1), num_waves
            and rotary_normalizer.
        grid: Grid of the tokens for calls without a grid and without a surrounding `teka.on`. With
            None, the tokens of a kernel with one axis are on a line, one unit apart.
        num_prefix_tokens: Number of first tokens without a position, such as a class token.

    Raises:
        ValueError: An argument is out of range, or queries, keys and values do not fit together.
    """

    def __init__(
        self,
        dim_head: int,
        heads: int,
        options: AttentionOptions | None = None,
        *,
        grid: GridLike | None = None,
        num_prefix_tokens: int = 0,
        **keywords: Any,
    ) -> None:
        super().__init__()
        check_sizes({"dim_head": dim_head, "heads": heads})
        check_sizes({"num_prefix_tokens": num_prefix_tokens}, 0)
        if grid is not None:
            grid = as_grid("grid", grid)
        options = merge_options(type(self).__name__, options, keywords, KERNEL_OPTIONS)
        default_num_axes = 1 if grid is None else grid.num_axes
        self.num_axes = options.num_axes or default_num_axes
        options = replace(options, num_axes=self.num_axes)
        self.dim_head = dim_head
        self.heads = heads
        self.grid = grid
        self.num_prefix_tokens = num_prefix_tokens
        self.backend = options.backend
        self.kernel, self.relative = make_kernels(options, heads, dim_head)

    def current_kernels(self) -> tuple[ContentKernel, RelativeKernel | None]:
        """Return the content kernel and the relative kernel with their current parameters.

        The relative kernel is None if the heads do not depend on positions.
        """
        kernel = self.kernel if isinstance(self.kernel, ContentKernel) else self.kernel()
        return kernel, None if self.relative is None else self.relative()

    def forward(
        self,
        query: Float[Tensor, "batch heads queries dim"],
        key: Float[Tensor, "batch heads keys dim"],
        value: Float[Tensor, "batch heads keys dim_value"],
        grid: GridLike | None = None,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
        num_prefix_tokens: int = 0,
        *,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> Float[Tensor, "batch heads queries dim_value"]:
        """Compute attention for queries, keys and values that are already split into heads.

        If causal attention has fewer queries than keys, the queries belong to the last tokens, as
        with a key-value cache. Arguments and errors are those of `teka.functional.attention`.
        """
        check_tensor("query", query, "batch", "heads", "tokens", self.dim_head)
        check_tensor("key", key, *query.shape[:2], "tokens", self.dim_head)
        kernel, relative = self.current_kernels()
        num_queries, num_keys = query.shape[2], key.shape[2]
        num_earlier = num_keys - num_queries if is_causal else 0
        placement: dict[str, Any] = {}
        if relative is not None:
            placement = self._position_kwargs(grid, num_prefix_tokens, num_keys, query.device)
        if num_earlier > 0 and (num_queries > 1 or placement.get("num_prefix_tokens")):
            # The outputs of the earlier tokens are discarded below.
            query = pad(query, (0, 0, num_earlier, 0))
        if relative is not None and query.shape[2] != num_keys:
            del placement["num_prefix_tokens"]
            if num_earlier > 0:
                points = placement.get("positions")
                if points is None:
                    points = placement["grid"].positions(
                        dtype=widest_dtype(query.device), device=query.device
                    )
                placement = {"positions": points[-1:], "key_positions": points}
            else:
                key_placement = {f"key_{name}": value for name, value in placement.items()}
                placement = self._position_kwargs(None, 0, num_queries, query.device)
                placement = {**placement, **key_placement, "num_prefix_tokens": 0}
        output = attention(
            query,
            key,
            value,
            kernel=kernel,
            relative=relative,
            key_mask=key_mask,
            is_causal=is_causal and bool(query.shape[2] >= num_keys),
            scale=scale,
            backend=self.backend,
            **placement,
        )
        return output[:, :, -num_queries:]

    def step(
        self,
        query: Float[Tensor, "batch heads tokens dim"],
        key: Float[Tensor, "batch heads tokens dim"],
        value: Float[Tensor, "batch heads tokens dim_value"],
        state: DecodingState | None = None,
        key_mask: Bool[Tensor, "batch tokens"] | None = None,
        *,
        scale: float | None = None,
    ) -> tuple[Float[Tensor, "batch heads tokens dim_value"], DecodingState]:
        """Compute causal attention of the next tokens of a sequence, given a state.

        The state summarizes all earlier tokens. Use this method to generate a sequence. Arguments,
        results and errors are those of `teka.functional.decode`.
        """
        kernel, relative = self.current_kernels()
        if relative is not None and self.num_prefix_tokens:
            expected = "0 to decode with the method step"
            raise wrong_value("num_prefix_tokens", self.num_prefix_tokens, expected)
        return decode(
            query,
            key,
            value,
            state,
            kernel=kernel,
            relative=relative,
            key_mask=key_mask,
            scale=scale,
        )

    def _position_kwargs(
        self, grid: GridLike | None, num_prefix_tokens: int, num_tokens: int, device: torch.device
    ) -> dict[str, Any]:
        """Return the keyword arguments of `attention` that describe the positions of the tokens.

        An argument `grid` takes precedence over the grid of a surrounding `teka.on`, which takes
        precedence over the grid of this layer. Without any grid, the tokens are one unit apart on a
        line.
        """
        candidates = [(grid, 0), active_grid_and_prefix(), (self.grid, self.num_prefix_tokens)]
        for candidate, prefix in candidates:
            if candidate is not None:
                prefix = num_prefix_tokens or prefix
                if isinstance(candidate, torch.SymInt):
                    row = make_row_positions(candidate, device)
                    return {"positions": row, "num_prefix_tokens": prefix}
                return {"grid": as_grid("grid", candidate), "num_prefix_tokens": prefix}
        if self.num_axes > 1:
            expected = f"a teka.Grid of {self.num_axes} axes, from the call, teka.on or the layer"
            raise wrong_value("grid", None, expected)
        prefix = num_prefix_tokens or self.num_prefix_tokens
        if has_dynamic_size(num_tokens):
            row = make_row_positions(num_tokens - prefix, device)
            return {"positions": row, "num_prefix_tokens": prefix}
        return {"grid": Grid(num_tokens - prefix), "num_prefix_tokens": prefix}

    def extra_repr(self) -> str:
        name = join_kernel_names(*self.current_kernels())
        return f"{name!r}, dim_head={self.dim_head}, heads={self.heads}, grid={self.grid}"
