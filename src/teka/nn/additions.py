"""What a layer may have beside its attention: normalised queries and keys, a gate, a convolution of the values."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.functional import conv1d, conv2d, conv3d, pad, rms_norm

from teka.checks import check_tensor_sizes, is_integer
from teka.errors import wrong_value
from teka.functional.kernels.base import mask_features, masked_mean
from teka.functional.plan import is_large_float32
from teka.functional.shapes import KeyMask, Keys, Queries, Values
from teka.grid import Grid

CONVOLUTIONS = {1: conv1d, 2: conv2d, 3: conv3d}  # by the number of axes
CONVOLUTION_MODULES = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
INITIAL_BIAS = 2.0  # of a gate: σ(2) = 0.88, nearly open


class PlainQueryKey(nn.Module):
    """Queries and keys as they are projected."""

    acts: ClassVar[bool] = False
    removes_bias: ClassVar[bool] = False
    head_parameters: ClassVar[tuple[str, ...]] = ()

    def forward(self, query: Queries, key: Keys, key_mask: KeyMask) -> tuple[Queries, Keys]:
        """Queries and keys of the heads that attend by content, and where keys are kept."""
        return query, key


class NormalizedQueryKey(PlainQueryKey):
    """Queries and keys over their root mean square, times a learned gain a head and channel: g ⊙ x / √(mean(x²)).

    Its size is a temperature; its differences between channels act in every kernel. Source: Henry et al. 2020 and
    Dehghani et al. 2023, with the norm of Zhang & Sennrich 2019.
    """

    acts = True
    head_parameters = ("query_gain", "key_gain")

    def __init__(self, heads: int, dim_head: int) -> None:
        super().__init__()
        self.query_gain = Parameter(torch.ones(heads, 1, dim_head))
        self.key_gain = Parameter(torch.ones(heads, 1, dim_head))

    def forward(self, query: Queries, key: Keys, key_mask: KeyMask) -> tuple[Queries, Keys]:
        return _normalize(query, self.query_gain), _normalize(key, self.key_gain)


def _normalize(vectors: Tensor, gain: Tensor) -> Tensor:
    # The squares of large float32 numbers overflow. Under autocast the gain is float32 but the vectors are not.
    wide = vectors.double() if is_large_float32(vectors) else vectors
    return (rms_norm(wide, wide.shape[-1:]) * gain).to(vectors.dtype)


class CentredQueryKey(PlainQueryKey):
    """Keys less their mean over the kept keys of the same sample and head; exactly equivariant, but not causal.

    The softmax kernel does not change by that; a kernel that rectifies its features sees keys that point everywhere.
    """

    acts = True
    removes_bias = True

    def forward(self, query: Queries, key: Keys, key_mask: KeyMask) -> tuple[Queries, Keys]:
        return query, key - masked_mean(key, key_mask)


QUERY_KEYS = ("plain", "normalized", "centred")


def make_query_key(query_key: str, heads: int, dim_head: int) -> PlainQueryKey:
    """What is done to queries and keys of so many heads, by name; a ValueError if there are no keys to act on."""
    if query_key == "plain":
        return PlainQueryKey()
    if heads == 0:
        raise wrong_value(
            "query_key", query_key, "'plain' with a kernel that does not look at content"
        )
    return CentredQueryKey() if query_key == "centred" else NormalizedQueryKey(heads, dim_head)


class NearlyOpen(nn.Linear):
    """A linear map that is constant at first; nothing is drawn, so that what else is drawn does not change."""

    def reset_parameters(self) -> None:
        """Set the initial values."""
        nn.init.zeros_(self.weight)
        nn.init.constant_(self.bias, INITIAL_BIAS)


class Gate(nn.Module):
    """σ(W x + b) for every token x, head and channel, by which the heads' output is multiplied (Qiu et al. 2025).

    W = 0 and b = 2 at first: all gates are the same and nearly open.
    """

    def __init__(self, dim: int, heads: int, dim_head: int) -> None:
        super().__init__()
        self.dim_head = dim_head
        self.projection = NearlyOpen(dim, heads * dim_head)

    def forward(
        self, tokens: Float[Tensor, "batch tokens dim"]
    ) -> Float[Tensor, "batch heads tokens dim_head"]:
        """Gates between 0 and 1 of tokens that attend."""
        return torch.sigmoid(
            self.projection(tokens).unflatten(-1, (-1, self.dim_head)).transpose(1, 2)
        )


class ValueConvolution(nn.Module):
    """Σ_t w_t v(x + t) over the cells t of a small cube of odd side, for every head and channel on its own.

    What is near is added with full rank, where linear attention gives a mean. Around periodic axes values go on from
    the other side, beyond the others they are 0, and so are dropped ones; w = 0 at first, and offsets count cells.
    Source: Han et al. 2023 (FLatten Transformer), with one kernel for each head instead of one for all.
    """

    equivariance: ClassVar[dict[str, str]] = {"shift": "exact"}

    def __init__(self, heads: int, dim_head: int, side: int, num_axes: int) -> None:
        super().__init__()
        if not is_integer(side) or side < 1 or side % 2 == 0:
            raise wrong_value(
                "value_convolution", side, "None or an odd number of at least 1, the side in cells"
            )
        if not is_integer(num_axes) or num_axes not in CONVOLUTIONS:
            raise wrong_value("num_axes", num_axes, "1, 2 or 3 with value_convolution")
        check_tensor_sizes({"value_convolution": side}, heads * dim_head * side**num_axes)
        self.side = side
        self.weight = Parameter(torch.zeros(heads * dim_head, 1, *(side,) * num_axes))

    def forward(
        self, value: Values, grid: Grid | None, num_prefix_tokens: int, key_mask: KeyMask
    ) -> Values:
        """The convolved values; 0 for prefix tokens, which lie nowhere. A ValueError for a grid of other axes."""
        num_axes = self.weight.ndim - 2
        if grid is None or grid.num_axes != num_axes:
            raise wrong_value(
                "grid", grid, f"a grid of {num_axes} axes for a layer with a value convolution"
            )
        value = mask_features(value, key_mask)
        cells = (
            value[:, :, num_prefix_tokens:].transpose(2, 3).flatten(1, 2).unflatten(2, grid.shape)
        )
        around = self._surrounded(cells, grid)
        convolved = CONVOLUTIONS[num_axes](
            around, self.weight.to(cells.dtype), groups=self.weight.shape[0]
        )
        tokens = convolved.flatten(2).unflatten(1, value.shape[1::2]).transpose(2, 3)
        return pad(tokens, (0, 0, num_prefix_tokens, 0))

    def _surrounded(self, cells: Tensor, grid: Grid) -> Tensor:
        margin = self.side // 2
        for axis, size in enumerate(grid.shape):
            if grid.periodic[axis]:
                places = torch.arange(-margin, size + margin, device=cells.device) % size
                cells = cells.index_select(2 + axis, places)
            else:
                cells = pad(cells, (0, 0) * (grid.num_axes - 1 - axis) + (margin, margin))
        return cells
