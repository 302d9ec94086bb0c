"""Pre-norm transformer block."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Bool, Float, Int, Real
from torch import Tensor, nn

from teka._compat import replace
from teka.checks import INTEGER_DTYPES, MAX_SIZE, check_sizes, check_tensor, is_number
from teka.errors import wrong_argument, wrong_value
from teka.functional import length_mask
from teka.grid import GridLike
from teka.nn.attention import Attention, States, Token, check_decoding_tokens
from teka.nn.inputs import check_layer_input
from teka.nn.options import ALL_OPTIONS, AttentionOptions, merge_options
from teka.nn.relative import DEFAULT_NUM_AXES, LearnedRelativeKernel

# A block attends to its own tokens and always projects the values.
BLOCK_OPTIONS = tuple(name for name in ALL_OPTIONS if name not in ("context_dim", "values"))


def compute_mlp_width(dim: int, mlp_ratio: float, round_size: Callable[[float], int] = int) -> int:
    """Return the width of the hidden layer of an MLP.

    The width is `dim` times `mlp_ratio`, converted to an integer by `round_size`.
    """
    hidden = round_size(dim * mlp_ratio) if is_number(mlp_ratio) else 0
    if not 1 <= hidden <= MAX_SIZE // dim:
        expected = f"at least 1 / dim = 1 / {dim}, and a width up to {MAX_SIZE // dim}"
        raise wrong_value("mlp_ratio", mlp_ratio, expected)
    return hidden


def count_window_heads(window_reach: int | None, heads: int) -> int:
    """Return the number of heads of a block that attend only to a window around each query.

    If `window_reach` is None, no head has a window. Otherwise, half of the heads have one.
    """
    check_sizes({"window_reach": window_reach}, or_none=True)
    if window_reach is None:
        return 0
    if heads < 2:
        expected = f"at least 2 with window_reach={window_reach}, which takes half of them"
        raise wrong_value("heads", heads, expected)
    return heads // 2


def make_mlp(dim: int, hidden: int, dropout: float) -> nn.Sequential:
    """Create an MLP with one hidden layer, a GELU, and dropout after both linear layers."""
    return nn.Sequential(
        nn.Linear(dim, hidden),
        nn.GELU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, dim),
        nn.Dropout(dropout),
    )


class TransformerBlock(nn.Module):
    """Pre-norm transformer block: x + Attention(norm(x)), then x + MLP(norm(x)).

    With `window_reach`, half of the heads compute softmax attention within a window around each
    query, and the other heads attend to all tokens. If these have a kernel for linear attention,
    the cost of the block is linear in the number of tokens.

    Source: Vaswani et al. 2017; pre-norm after Xiong et al. 2020, as in Horn et al. 2021.

    >>> import torch, teka
    >>> block = teka.nn.TransformerBlock(16, 4, relative="fourier", window_reach=1)
    >>> block(torch.randn(2, 1 + 20, 16), teka.Grid((4, 5)), num_prefix_tokens=1).shape
    torch.Size([2, 21, 16])

    Args:
        dim: Size of a token.
        heads: Number of heads.
        options: An `AttentionOptions` for the heads without a window. Keyword arguments replace its
            values, which `Attention` describes. A block has no `context_dim` and no `values`.
        mlp_ratio: Size of the hidden layer of the MLP divided by dim.
        window_reach: Number of cells along each axis that the window reaches from the query, or
            None.

    Raises:
        ValueError: A size is below 1, options contradict each other, or an input has a wrong shape.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        options: AttentionOptions | None = None,
        *,
        mlp_ratio: float = 4.0,
        window_reach: int | None = None,
        **keywords: Any,
    ) -> None:
        super().__init__()
        check_sizes({"dim": dim, "heads": heads})
        options = merge_options(type(self).__name__, options, keywords, BLOCK_OPTIONS)
        hidden = compute_mlp_width(dim, mlp_ratio)
        num_window_heads = count_window_heads(window_reach, heads)
        if options.dim_head is None and num_window_heads:
            if dim % heads:
                expected = f"a divisor of dim = {dim}, unless dim_head is set"
                raise wrong_value("heads", heads, expected)
            options = replace(options, dim_head=dim // heads)
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads - num_window_heads, options)
        self.window_attention: Attention | None = None
        if window_reach is not None:
            window = LearnedRelativeKernel(
                "window",
                num_axes=options.num_axes or DEFAULT_NUM_AXES,
                heads=num_window_heads,
                max_distance=window_reach,
            )
            self.window_attention = Attention(
                dim,
                num_window_heads,
                kernel="softmax",
                relative=window,
                dim_head=self.attention.dim_head,
                causal=options.causal,
                qkv_bias=options.qkv_bias,
                dropout=options.dropout,
            )
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = make_mlp(dim, hidden, options.dropout)

    def forward(
        self,
        tokens: Float[Tensor, "batch tokens dim"],
        grid: GridLike | None = None,
        key_mask: Bool[Tensor, "batch tokens"] | None = None,
        num_prefix_tokens: int = 0,
        num_queries: int | None = None,
        *,
        positions: Real[Tensor, "*batch placed axes"] | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
        cu_seqlens: Int[Tensor, "sequences"] | None = None,
    ) -> Float[Tensor, "batch queries dim"]:
        """Transform the tokens, or only the first `num_queries` of them.

        The arguments are those of `Attention.forward`. With `lengths`, the padding is treated as 0,
        and no other token attends to it.
        """
        check_layer_input(
            "tokens", tokens, "batch", "tokens", self.attention.dim, layer=self.attention.output
        )
        if lengths is not None:
            check_tensor("lengths", lengths, tokens.shape[0], dtypes=INTEGER_DTYPES)
            tokens = tokens.masked_fill(~length_mask(lengths, tokens.shape[1])[..., None], 0.0)
        placement = {"positions": positions, "lengths": lengths, "cu_seqlens": cu_seqlens}
        normalized = self.attention_norm(tokens)
        attended = self.attention(
            normalized, grid, key_mask, num_prefix_tokens, num_queries, **placement
        )
        if self.window_attention is not None:
            near = self.window_attention(normalized, grid, key_mask, num_prefix_tokens, **placement)
            attended = attended + near[:, :num_queries]
        tokens = tokens[:, :num_queries] + attended
        return tokens + self.mlp(self.mlp_norm(tokens))

    def step(
        self,
        token: Token,
        state: States | None = None,
        *,
        position: Real[Tensor, "*batch axes"] | None = None,
    ) -> tuple[Token, States]:
        """Transform the next token or tokens of a sequence, given the state of earlier tokens.

        Use this method of a causal block to generate a sequence. The cost of a token does not grow
        with the number of earlier tokens.

        Args:
            token: The next token of each sample, shape (B, dim), or the next L tokens, shape
                (B, L, dim).
            state: The state that the previous call returned, or None before the first token.
            position: Position of a single token in physical units, shape (n,) or (B, n). By
                default, token t is at t.

        Returns:
            The transformed tokens, in the shape of `token`, and the new state.

        Raises:
            ValueError: The block is not causal, has window heads, or has a kernel without a
                recurrent state.
        """
        if self.window_attention is not None:
            expected = "None to decode with the method step"
            raise wrong_argument("window_reach", "a value", expected)
        check_decoding_tokens(token, self.attention)
        attended, state = self.attention.step(self.attention_norm(token), state, position=position)
        token = token + attended
        return token + self.mlp(self.mlp_norm(token)), state
