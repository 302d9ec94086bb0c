"""Attention with the signature and the parameters of `torch.nn.MultiheadAttention`."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from torch.nn.functional import linear
from typing_extensions import Unpack

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
from teka.execution_mode import is_readable
from teka.grid import GridLike
from teka.nn.attention_heads import AttentionHeads
from teka.nn.inputs import check_tokens
from teka.nn.options import PlacedKeywords, takes

# Tokens as torch takes them: (L, B, E), with `batch_first` (B, L, E), or of one sample (L, E).
QueryTokens = Float[Tensor, "*query_tokens embed_dim"]


class MultiheadAttention(nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention` with the kernels of teka: the same arguments and the same projections.

    The layer replaces PyTorch's, for instance in `nn.TransformerEncoderLayer`. The kernels are in `heads`, an
    `AttentionHeads`. `load_state_dict` accepts the weights of PyTorch's layer; parameters of the kernels, which these
    lack, keep their values. The default, squared relu × rotary, costs O(L). Tokens are in a row, or on a `grid`, which
    is given to the layer or by `teka.on`.

    Differences from PyTorch:

    - `need_weights` is False by default, because the weights cost O(L²). The second result is then None.
    - Dropout acts on the output, because there is no matrix of weights.
    - An `attn_mask` must be causal. `add_bias_kv` and `add_zero_attn` must be False.

    >>> import torch, teka
    >>> layer = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True)
    >>> layer.self_attn = teka.nn.MultiheadAttention(16, 2, batch_first=True)
    >>> layer(torch.zeros(1, 7, 16)).shape
    torch.Size([1, 7, 16])

    Args:
        embed_dim: Size E of a token.
        num_heads: Number of heads, a divisor of embed_dim.
        dropout: Probability of dropping a number of the output in training.
        bias: Whether linear maps have a bias.
        add_bias_kv: Only False, as a learned key has no position.
        add_zero_attn: Only False, likewise.
        kdim: Size of the tokens that keys are made of, embed_dim by default.
        vdim: Size of the tokens that values are made of, likewise.
        batch_first: Whether tokens have shape (B, L, E), and not (L, B, E).
        device: Where the parameters are.
        dtype: Their type of numbers.
        grid: The grid that tokens are on; see `AttentionHeads`.
        num_prefix_tokens: Number of first tokens without a position, such as a class token.
        options: Keywords of `AttentionOptions`, as `AttentionHeads` takes them.
    """

    @takes(PlacedKeywords)
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
        **options: Unpack[PlacedKeywords],
    ) -> None:
        check_sizes({"embed_dim": embed_dim, "num_heads": num_heads})
        check_sizes({"kdim": kdim, "vdim": vdim}, or_none=True)
        widest = max(size or embed_dim for size in (kdim, vdim))
        check_tensor_sizes({"embed_dim": embed_dim}, 3 * embed_dim**2)
        check_tensor_sizes({"embed_dim": embed_dim, "the larger of kdim and vdim": widest})
        check_flags({"bias": bias, "batch_first": batch_first})
        check_flags({"add_bias_kv": add_bias_kv, "add_zero_attn": add_zero_attn})
        for argument, flag in {"add_bias_kv": add_bias_kv, "add_zero_attn": add_zero_attn}.items():
            if flag:
                raise wrong_value(
                    argument, flag, "False, because a key that is no token has no position"
                )
        if embed_dim % num_heads:
            raise wrong_value("embed_dim", embed_dim, f"a multiple of num_heads, {num_heads}")
        if not is_number(dropout) or not 0 <= dropout <= 1:
            raise wrong_value("dropout", dropout, "a probability, from 0 to 1")
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise wrong_value("dtype", dtype, "a dtype of floating-point numbers, or None")
        sizes = {
            "kdim": kdim,
            "vdim": vdim,
            "batch_first": batch_first,
            "device": device,
            "dtype": dtype,
        }
        super().__init__(embed_dim, num_heads, dropout, bias, **sizes)
        # Encoder layers look at this and, where it is true, compute softmax attention themselves.
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
        """Attend; masks as torch has them, True or −∞ where a key is dropped. A ValueError for what cannot be kept.

        Args:
            query: Tokens that attend.
            key: Tokens that keys are made of.
            value: Tokens that values are made of, as many.
            key_padding_mask: Which keys are dropped, shape (B, L_k), or (L_k,) of one sample.
            need_weights: Whether to give the weights too, by a computation of their own.
            attn_mask: None, or the causal mask, which drops every later key.
            average_attn_weights: Whether these are the mean over heads, (B, L, L_k), and not (B, H, L, L_k).
            is_causal: Whether no token sees a later one.
        """
        check_flags(
            {
                "need_weights": need_weights,
                "average_attn_weights": average_attn_weights,
                "is_causal": is_causal,
            }
        )
        is_batch = self._is_batch(query, key, value)
        if is_batch and not self.batch_first:
            query, key, value = (one.transpose(0, 1) for one in (query, key, value))
        if not is_batch:
            query, key, value = query[None], key[None], value[None]
        keep = None
        if key_padding_mask is not None:
            check_tensor(
                "key_padding_mask",
                key_padding_mask,
                *key.shape[not is_batch : 2],
                dtypes=MASK_DTYPES,
            )
            keep = attended_keys("key_padding_mask", key_padding_mask.view(key.shape[:2]))
        options = {"key_mask": keep, "is_causal": is_causal or is_causal_mask(attn_mask)}
        vectors = [
            linear(tokens, weight, bias).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for tokens, (weight, bias) in zip((query, key, value), self._maps(), strict=True)
        ]
        attended = self.heads(*vectors, **options)
        output = self.out_proj(attended.transpose(1, 2).flatten(2))
        output = nn.functional.dropout(output, self.dropout, self.training)
        weights = None
        if need_weights:
            each = torch.eye(key.shape[1], dtype=vectors[2].dtype, device=query.device)
            each = each.expand(*vectors[1].shape[:3], -1)
            weights = self.heads(*vectors[:2], each, **options)
            weights = weights.mean(dim=1) if average_attn_weights else weights
        if not is_batch:
            return output[0], None if weights is None else weights[0]
        return output if self.batch_first else output.transpose(0, 1), weights

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        start = f"{prefix}heads."
        if not any(name.startswith(start) for name in state_dict):  # the weights of PyTorch's layer
            state_dict.update(
                {f"{start}{name}": tensor for name, tensor in self.heads.state_dict().items()}
            )
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _is_batch(self, query: Tensor, key: Tensor, value: Tensor) -> bool:
        """Whether tokens are those of a batch, and not of one sample; a ValueError for shapes that do not fit."""
        is_batch = not isinstance(query, Tensor) or query.ndim != 2
        places = ("batch", "tokens") if self.batch_first else ("tokens", "batch")
        for argument, tokens, size in (
            ("query", query, self.embed_dim),
            ("key", key, self.kdim),
            ("value", value, self.vdim),
        ):
            check_tokens(
                argument, tokens, *(places if is_batch else ("tokens",)), size, first=self.out_proj
            )
        return is_batch

    def _maps(self) -> list[tuple[Tensor, Tensor | None]]:
        """Weight and bias of the linear maps to queries, keys and values."""
        packed = self.in_proj_weight
        apart = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        weights = apart if packed is None else packed.chunk(3)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return list(zip(weights, biases, strict=True))


def attended_keys(argument: str, mask: Shaped[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
    """True where torch's mask, of flags or of 0 and −∞, keeps; a ValueError for other numbers."""
    if mask.dtype == torch.bool:
        return ~mask
    keep = mask == 0
    if is_readable(keep) and not bool((keep | (mask == -torch.inf)).all()):
        raise wrong_value(
            argument,
            mask.unique()[:3].tolist(),
            "flags, or 0 where a key is kept and −∞ where it is dropped",
        )
    return keep


def is_causal_mask(mask: Shaped[Tensor, "*matrices queries keys"] | None) -> bool:
    """Whether there is a mask; a ValueError for one that is not causal."""
    if mask is None:
        return False
    check_dtype("attn_mask", mask, MASK_DTYPES)
    if mask.ndim < 2 or mask.shape[-1] != mask.shape[-2]:
        raise wrong_shape("attn_mask", mask.shape, "the shape (tokens, tokens) of a causal mask")
    keep = attended_keys("attn_mask", mask)
    if is_readable(keep) and not bool((keep == torch.ones_like(keep).tril()).all()):
        came = f"{int((~keep).sum())} of {keep.numel()} pairs dropped"
        raise wrong_argument(
            "attn_mask",
            came,
            "the causal mask, which drops later keys and nothing else; sums over keys cannot apply another",
        )
    return True
