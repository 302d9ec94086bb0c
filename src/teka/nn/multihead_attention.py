"""Drop-in replacement for `torch.nn.MultiheadAttention` with linear cost."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from torch.nn.functional import linear

from teka.checks import (
    MASK_DTYPES,
    check_dtype,
    check_flags,
    check_sizes,
    check_tensor,
    check_tensor_sizes,
    is_number,
)
from teka.errors import wrong_argument, wrong_shape, wrong_value
from teka.execution_mode import can_read_elements
from teka.grid import GridLike
from teka.nn.attention_heads import AttentionHeads
from teka.nn.inputs import check_layer_input

# (L, B, E), or (B, L, E) with `batch_first`, or (L, E) without a batch.
QueryTokens = Float[Tensor, "*query_tokens embed_dim"]


class MultiheadAttention(nn.MultiheadAttention):
    """Drop-in replacement for `torch.nn.MultiheadAttention` with a cost of O(L) for L tokens.

    Arguments and projections are the same as in PyTorch, so that the layer can be used in
    `nn.TransformerEncoderLayer`, for instance. `load_state_dict` also accepts the weights of
    PyTorch's layer, and then leaves the parameters of the kernels unchanged. The kernels, by
    default squared relu × rotary, belong to the attribute `heads`, an `AttentionHeads`. The tokens
    are a sequence, or the cells of a `grid` that is passed to the layer or set by `teka.on`.

    Differences from PyTorch:

    - `need_weights` is False by default, because the weights cost O(L²). The second result is None.
    - Dropout acts on the output, because the attention weights are not computed.
    - An `attn_mask` must be causal. `add_bias_kv` and `add_zero_attn` must be False.

    >>> import torch, teka
    >>> layer = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True)
    >>> layer.self_attn = teka.nn.MultiheadAttention(16, 2, batch_first=True)
    >>> layer(torch.zeros(1, 7, 16)).shape
    torch.Size([1, 7, 16])

    Args:
        embed_dim: Size E of a token.
        num_heads: Number of heads. It must divide `embed_dim`.
        dropout: Dropout probability of the output.
        bias: Add a bias to the projections.
        add_bias_kv: Must be False, because a learned key has no position.
        add_zero_attn: Must be False, because a zero key has no position.
        kdim: Size of the tokens that are projected to keys, by default `embed_dim`.
        vdim: Size of the tokens that are projected to values, by default `embed_dim`.
        batch_first: Tokens have shape (B, L, E) instead of (L, B, E).
        device: Device of the parameters.
        dtype: Dtype of the parameters.
        grid: Grid of the tokens, see `AttentionHeads`.
        num_prefix_tokens: Number of first tokens without a position, such as a class token.
        options: Keyword arguments of `AttentionOptions`, as in `AttentionHeads`.

    Raises:
        ValueError: An argument has a value that is not allowed.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        grid: GridLike | None = None,
        num_prefix_tokens: int = 0,
        **options: Any,
    ) -> None:
        check_sizes({"embed_dim": embed_dim, "num_heads": num_heads})
        check_sizes({"kdim": kdim, "vdim": vdim}, or_none=True)
        largest_dim = max(kdim or embed_dim, vdim or embed_dim)
        check_tensor_sizes({"embed_dim": embed_dim}, 3 * embed_dim**2)
        check_tensor_sizes({"embed_dim": embed_dim, "the larger of kdim and vdim": largest_dim})
        check_flags({"bias": bias, "batch_first": batch_first})
        unsupported = {"add_bias_kv": add_bias_kv, "add_zero_attn": add_zero_attn}
        check_flags(unsupported)
        for argument, flag in unsupported.items():
            if flag:
                hint = "The added key would have no position, but relative kernels need one."
                raise wrong_value(argument, flag, "False", hint)
        if embed_dim % num_heads:
            raise wrong_value("embed_dim", embed_dim, f"a multiple of num_heads, {num_heads}")
        if not is_number(dropout) or not 0 <= dropout <= 1:
            raise wrong_value("dropout", dropout, "a probability from 0 to 1")
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise wrong_value("dtype", dtype, "a floating-point dtype, or None")
        super().__init__(
            embed_dim,
            num_heads,
            dropout,
            bias,
            kdim=kdim,
            vdim=vdim,
            batch_first=batch_first,
            device=device,
            dtype=dtype,
        )
        # Otherwise nn.TransformerEncoderLayer computes softmax attention itself.
        self._qkv_same_embed_dim = False
        heads = AttentionHeads(
            self.head_dim, num_heads, grid=grid, num_prefix_tokens=num_prefix_tokens, **options
        )
        self.heads = heads.to(device=device, dtype=dtype)

    def forward(
        self,
        query: QueryTokens,
        key: Float[Tensor, "*key_tokens kdim"],
        value: Float[Tensor, "*key_tokens vdim"],
        key_padding_mask: Shaped[Tensor, "*batch keys"] | None = None,
        need_weights: bool = False,
        attn_mask: Shaped[Tensor, "*matrices queries keys"] | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[QueryTokens, Float[Tensor, "*heads queries keys"] | None]:
        """Compute attention, with the arguments and results of `torch.nn.MultiheadAttention`.

        As in PyTorch, a key is ignored where a boolean mask is True or an additive mask is −∞.

        Args:
            query: Query tokens, shape (L, B, E), or (B, L, E) with `batch_first`, or (L, E).
            key: Tokens that are projected to keys.
            value: Tokens that are projected to values. Their number is that of the keys.
            key_padding_mask: Mask of the keys, shape (B, L_k), or (L_k,) without a batch.
            need_weights: Return the weights too, at a cost of O(L²).
            attn_mask: None or a causal mask.
            average_attn_weights: Average the weights over heads.
            is_causal: Attend only to earlier tokens and to the token itself.

        Returns:
            The output tokens, and the weights or None. The weights have shape (B, L, L_k), or
            (B, H, L, L_k) if they are not averaged.

        Raises:
            ValueError: A shape or a mask is not supported.
        """
        check_flags(
            {
                "need_weights": need_weights,
                "average_attn_weights": average_attn_weights,
                "is_causal": is_causal,
            }
        )
        is_batch = not isinstance(query, Tensor) or query.ndim != 2
        self._check_shapes(query, key, value, is_batch)
        if not is_batch:
            query, key, value = query[None], key[None], value[None]
        elif not self.batch_first:
            query, key, value = query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)
        key_mask = None
        if key_padding_mask is not None:
            sizes = key.shape[:2] if is_batch else key.shape[1:2]
            check_tensor("key_padding_mask", key_padding_mask, *sizes, dtypes=MASK_DTYPES)
            key_mask = invert_pytorch_mask("key_padding_mask", key_padding_mask.view(key.shape[:2]))
        options = {"key_mask": key_mask, "is_causal": is_causal or is_causal_mask(attn_mask)}
        vectors = [
            linear(tokens, weight, bias).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for tokens, (weight, bias) in zip(
                (query, key, value), self._projection_weights(), strict=True
            )
        ]
        attended = self.heads(*vectors, **options)
        output = self.out_proj(attended.transpose(1, 2).flatten(2))
        output = nn.functional.dropout(output, self.dropout, self.training)
        weights = None
        if need_weights:
            # If the values are unit vectors, the outputs are the attention weights.
            unit_vectors = torch.eye(key.shape[1], dtype=vectors[2].dtype, device=query.device)
            unit_vectors = unit_vectors.expand(*vectors[1].shape[:3], -1)
            weights = self.heads(*vectors[:2], unit_vectors, **options)
            weights = weights.mean(dim=1) if average_attn_weights else weights
        if not is_batch:
            return output[0], None if weights is None else weights[0]
        return output if self.batch_first else output.transpose(0, 1), weights

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        start = f"{prefix}heads."
        # The weights of PyTorch's layer have no parameters of the kernels.
        if not any(name.startswith(start) for name in state_dict):
            state_dict.update(
                {f"{start}{name}": tensor for name, tensor in self.heads.state_dict().items()}
            )
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _check_shapes(self, query: Tensor, key: Tensor, value: Tensor, is_batch: bool) -> None:
        dims = ("batch", "tokens") if self.batch_first else ("tokens", "batch")
        if not is_batch:
            dims = ("tokens",)
        check_layer_input("query", query, *dims, self.embed_dim, layer=self.out_proj)
        check_layer_input("key", key, *dims, self.kdim, layer=self.out_proj)
        check_layer_input("value", value, *dims, self.vdim, layer=self.out_proj)

    def _projection_weights(self) -> list[tuple[Tensor, Tensor | None]]:
        """Return the weight and bias of the projections of queries, keys and values."""
        weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return list(zip(weights, biases, strict=True))


def invert_pytorch_mask(argument: str, mask: Shaped[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
    """Convert a PyTorch attention mask to a boolean mask that is True for keys to attend to.

    In PyTorch, a mask is True or −∞ for keys to ignore, and False or 0 for keys to attend to.

    Raises:
        ValueError: An additive mask has an element other than 0 and −∞.
    """
    if mask.dtype == torch.bool:
        return ~mask
    keep = mask == 0
    if can_read_elements(keep) and not bool((keep | (mask == -torch.inf)).all()):
        hint = "0 keeps a key and −∞ masks it."
        raise wrong_value(argument, mask.unique()[:3].tolist(), "booleans, or 0 and −∞", hint)
    return keep


def is_causal_mask(mask: Shaped[Tensor, "*matrices queries keys"] | None) -> bool:
    """Return True if an attention mask is causal, and False if it is None.

    Raises:
        ValueError: The mask is not causal, which the layer does not support.
    """
    if mask is None:
        return False
    check_dtype("attn_mask", mask, MASK_DTYPES)
    if mask.ndim < 2 or mask.shape[-1] != mask.shape[-2]:
        raise wrong_shape("attn_mask", mask.shape, "the shape (tokens, tokens) of a causal mask")
    keep = invert_pytorch_mask("attn_mask", mask)
    if can_read_elements(keep) and not bool((keep == torch.ones_like(keep).tril()).all()):
        actual = f"a mask that excludes {int((~keep).sum())} of {keep.numel()} pairs"
        hint = "A mask that is the same for all queries can be passed as key_padding_mask."
        raise wrong_argument("attn_mask", actual, "the causal mask", hint)
    return True
