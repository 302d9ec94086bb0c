"""Kernels with their parameters, between queries, keys and values that others have projected."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import pad
from typing_extensions import Unpack

from teka.checks import check_sizes, check_tensor
from teka.errors import wrong_value
from teka.execution_mode import is_dynamic
from teka.functional import DecodingState, Kernel, attention, decode
from teka.functional.relative.base import Relative
from teka.grid import Grid, GridLike, as_grid, current_grid
from teka.nn.heads import make_kernels, pair_name
from teka.nn.options import AttentionOptions, PlacedKeywords, takes
from teka.precision import widest_dtype


class AttentionHeads(nn.Module):
    """`teka.functional.attention` with learned kernels: the heads of a layer whose linear maps are another's.

    It is what makes attention that exists already attend by teka's kernels: `MultiheadAttention` and the layers that
    `teka.convert.replace_attention` mends are their old linear maps around it. The relative kernel is in every head.

    >>> import torch, teka
    >>> heads = teka.nn.AttentionHeads(8, 2, grid=teka.Grid((3, 4)))
    >>> query, key, value = torch.randn(3, 1, 2, 12, 8)
    >>> heads(query, key, value).shape
    torch.Size([1, 2, 12, 8])

    Args:
        dim_head: Size d of queries and keys.
        heads: Number of heads.
        grid: The grid that tokens are on where a call says nothing else and no `teka.on` is around it. With None they
            stand in a row, one unit apart, if the kernel has one axis.
        num_prefix_tokens: Number of first tokens without a position, such as a class token, of that grid or row.
        options: Keywords of `AttentionOptions`: kernel, relative, num_features, projection, backend, num_axes (by
            default the grid's, or 1), num_waves and rotary_normalizer.
    """

    @takes(PlacedKeywords)
    def __init__(
        self,
        dim_head: int,
        heads: int,
        *,
        grid: GridLike | None = None,
        num_prefix_tokens: int = 0,
        **options: Unpack[PlacedKeywords],
    ) -> None:
        super().__init__()
        check_sizes({"dim_head": dim_head, "heads": heads})
        check_sizes({"num_prefix_tokens": num_prefix_tokens}, 0)
        if grid is not None:
            grid = as_grid("grid", grid)
        chosen = AttentionOptions(**{"num_axes": 1 if grid is None else grid.num_axes, **options})
        self.dim_head, self.heads = dim_head, heads
        self.grid, self.num_prefix_tokens, self.backend = grid, num_prefix_tokens, chosen.backend
        self.num_axes = chosen.num_axes
        self.kernel, self.relative = make_kernels(chosen, heads, dim_head)

    def present(self) -> tuple[Kernel, Relative | None]:
        """Both kernels with their present parameters."""
        kernel = self.kernel if isinstance(self.kernel, Kernel) else self.kernel()
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
        """Attend; arguments and errors as in `teka.functional.attention`.

        Where causal queries are fewer than the keys they are the last ones, as with keys kept from one call to the
        next.
        """
        check_tensor("query", query, "batch", "heads", "tokens", self.dim_head)
        check_tensor("key", key, *query.shape[:2], "tokens", self.dim_head)
        kernel, relative = self.present()
        num_queries, num_keys = query.shape[2], key.shape[2]
        earlier = num_keys - num_queries if is_causal else 0
        places: dict[str, Any] = {}
        if relative is not None:
            places = self._places(grid, num_prefix_tokens, num_keys, query.device)
        if earlier > 0 and (num_queries > 1 or places.get("num_prefix_tokens")):
            query = pad(query, (0, 0, earlier, 0))  # outputs of the earlier tokens are not used
        if relative is not None and query.shape[2] != num_keys:
            del places["num_prefix_tokens"]
            if earlier > 0:
                row = places.get("positions")
                if row is None:
                    row = places["grid"].positions(
                        dtype=widest_dtype(query.device), device=query.device
                    )
                places = {"positions": row[-1:], "key_positions": row}
            else:
                key_places = {f"key_{name}": place for name, place in places.items()}
                places = {
                    **self._places(None, 0, num_queries, query.device),
                    **key_places,
                    "num_prefix_tokens": 0,
                }
        options = {
            "is_causal": is_causal and bool(query.shape[2] >= num_keys),
            "scale": scale,
            "backend": self.backend,
        }
        kernels = {"kernel": kernel, "relative": relative}
        attended = attention(query, key, value, key_mask=key_mask, **kernels, **places, **options)
        return attended[:, :, -num_queries:]

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
        """Attend causally from the next tokens in a row to those so far, and what they leave; see `decode`."""
        kernel, relative = self.present()
        if relative is not None and self.num_prefix_tokens:
            raise wrong_value(
                "num_prefix_tokens", self.num_prefix_tokens, "0 for heads that decode step by step"
            )
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

    def _places(
        self, grid: GridLike | None, num_prefix_tokens: int, num_tokens: int, device: torch.device
    ) -> dict[str, Any]:
        """Return the arguments of `attention` that place tokens, with their prefix.

        They are on the given grid, or on that of `teka.on`, or on the layer's own, or in a row. A row of any length, in
        an exported graph, is no grid but positions.
        """
        for one, prefix in ((grid, 0), current_grid(), (self.grid, self.num_prefix_tokens)):
            if one is not None:
                return {
                    "grid": as_grid("grid", one),
                    "num_prefix_tokens": num_prefix_tokens or prefix,
                }
        if self.num_axes > 1:
            raise wrong_value(
                "grid",
                None,
                f"a teka.Grid of {self.num_axes} axes, here, in the layer or by teka.on",
            )
        prefix = num_prefix_tokens or self.num_prefix_tokens
        if is_dynamic(num_tokens):
            row = torch.arange(num_tokens - prefix, dtype=widest_dtype(device), device=device)
            return {"positions": row[:, None], "num_prefix_tokens": prefix}
        return {"grid": Grid(num_tokens - prefix), "num_prefix_tokens": prefix}

    def extra_repr(self) -> str:
        kernel, relative = self.present()
        return f"{pair_name(kernel, relative)!r}, dim_head={self.dim_head}, heads={self.heads}, grid={self.grid}"
