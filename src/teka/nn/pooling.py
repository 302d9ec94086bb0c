"""Layers that reduce the number of tokens: attention pooling and space to depth."""

from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import Parameter

from teka import functional
from teka.checks import check_dtype, check_flags, check_sizes, check_tensor_sizes
from teka.errors import wrong_shape, wrong_value
from teka.functional.positions import check_mask
from teka.nn.inputs import check_layer_input
from teka.nn.sampling.polyphase import join_polyphase, split_polyphase


class AttentionPool(nn.Module):
    """Pooling of all tokens into `num_queries` vectors by softmax attention with learned queries.

        out = W_o · concat_h softmax(q_h K_hᵀ / √d) V_h

    The queries q_h of head h are learned parameters. The keys K_h and values V_h are projections of
    the tokens to vectors of size d. The output does not depend on the order of the tokens, and the
    cost is linear in their number.

    Source: attention with a learned query; Lee et al. 2019 (Set Transformer), §3.2.

    >>> import torch, teka
    >>> pool, tokens = teka.nn.AttentionPool(16, 4, num_queries=2), torch.randn(1, 7, 16)
    >>> pool(tokens).shape, torch.allclose(pool(tokens.flip(1)), pool(tokens), atol=1e-6)
    (torch.Size([1, 2, 16]), True)

    Args:
        dim: Size of the tokens, a multiple of `heads`.
        heads: Number of heads.
        num_queries: Number of output vectors.
        qkv_bias: Add a bias to the values. A bias of the keys would cancel in the softmax.

    Raises:
        ValueError: `dim` is not a multiple of `heads`, or a number is below 1.
    """

    equivariance: ClassVar[dict[str, str]] = {"permutation": "exact"}

    def __init__(
        self, dim: int, heads: int, *, num_queries: int = 1, qkv_bias: bool = True
    ) -> None:
        super().__init__()
        check_sizes({"dim": dim, "heads": heads, "num_queries": num_queries})
        check_tensor_sizes({"dim": dim}, dim**2)
        check_tensor_sizes({"dim": dim, "num_queries": num_queries})
        check_flags({"qkv_bias": qkv_bias})
        if dim % heads:
            raise wrong_value("heads", heads, f"a divisor of dim = {dim}")
        self.dim = dim
        self.heads = heads
        self.query = Parameter(torch.randn(num_queries, dim))
        self.key = nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(dim, dim, bias=qkv_bias)
        self.output = nn.Linear(dim, dim)

    def forward(
        self,
        tokens: Float[Tensor, "batch tokens dim"],
        key_mask: Bool[Tensor, "batch tokens"] | None = None,
    ) -> Float[Tensor, "batch queries dim"]:
        """Pool the tokens of each sample, except those where `key_mask` is False.

        If all tokens of a sample are masked, its output is the bias of the output projection.
        """
        check_layer_input("tokens", tokens, "batch", "tokens", self.dim, layer=self.output)
        if key_mask is not None:
            check_mask("key_mask", key_mask, batch=tokens.shape[0], num_tokens=tokens.shape[1])
            tokens = tokens.masked_fill(~key_mask[..., None], 0.0)
        key, value = self.key(tokens), self.value(tokens)
        query = self.query.to(key.dtype).expand(tokens.shape[0], -1, -1)
        query, key, value = (
            projected.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for projected in (query, key, value)
        )
        output = functional.attention(query, key, value, kernel="softmax", key_mask=key_mask)
        return self.output(output.transpose(1, 2).flatten(2))


class SpaceToDepth(nn.Module):
    """Lossless downsampling that moves each block of pixels into the channels of one pixel.

    A block has f = `factor` pixels along each axis. On images, the layer is equal to
    `torch.nn.PixelUnshuffle`. The method `inverse` restores the input exactly. A shift of the input
    by f pixels shifts the output by one pixel. Other shifts also permute the channels.

        y[c fⁿ + (t_1, …, t_n), i] = x[c, f i + t],   t in {0, …, f − 1}ⁿ in row-major order

    Here c is a channel, n is the number of axes, and t is a pixel within block i.

    Source: Jacobsen et al. 2018 (i-RevNet), §3.1, after Shi et al. 2016; Cordonnier et al. 2020,
    §4.1, with f = 2.

    >>> import torch, teka
    >>> down, maps = teka.nn.SpaceToDepth(2), torch.randn(1, 3, 4, 6)
    >>> down(maps).shape, torch.equal(down.inverse(down(maps)), maps)
    (torch.Size([1, 12, 2, 3]), True)

    Args:
        factor: Side f of a block in pixels.
        num_axes: Number n of spatial axes.

    Raises:
        ValueError: An argument is below 1, or `factor` does not divide a side of the input.
    """

    def __init__(self, factor: int = 2, num_axes: int = 2) -> None:
        super().__init__()
        check_sizes({"factor": factor, "num_axes": num_axes})
        self.factor = factor
        self.num_axes = num_axes
        self.stride = (factor,) * num_axes
        self.cells_per_block = factor**num_axes

    def forward(
        self, maps: Float[Tensor, "batch channels *sides"]
    ) -> Float[Tensor, "batch more_channels *fewer"]:
        """Move blocks of pixels into channels.

        On images, the shape (B, C, H, W) becomes (B, C f², H / f, W / f) for the factor f.

        Raises:
            ValueError: The input has another number of axes, or a side is not a multiple of f.
        """
        check_dtype("maps", maps, None)
        if maps.ndim != 2 + self.num_axes or any(side % self.factor for side in maps.shape[2:]):
            expected = (
                f"(batch, channels) and {self.num_axes} sides, multiples of factor = {self.factor}"
            )
            raise wrong_shape("maps", maps.shape, expected)
        return split_polyphase(maps, self.stride).transpose(1, 2).flatten(1, 2)

    def inverse(
        self, maps: Float[Tensor, "batch more_channels *fewer"]
    ) -> Float[Tensor, "batch channels *sides"]:
        """Restore the input of `forward` from its output."""
        check_dtype("maps", maps, None)
        if maps.ndim != 2 + self.num_axes or maps.shape[1] % self.cells_per_block:
            expected = (
                f"(batch, a multiple of {self.cells_per_block} channels) and {self.num_axes} sides"
            )
            raise wrong_shape("maps", maps.shape, expected)
        components = maps.unflatten(1, (-1, self.cells_per_block)).transpose(1, 2)
        return join_polyphase(components, self.stride)
