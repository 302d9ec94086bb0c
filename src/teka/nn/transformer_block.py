"""A pre-norm transformer block."""

from collections.abc import Callable

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from typing_extensions import Unpack

from teka.checks import INTEGER_DTYPES, MAX_SIZE, check_sizes, check_tensor, is_number
from teka.errors import wrong_argument, wrong_value
from teka.functional import length_mask
from teka.grid import GridLike
from teka.nn.attention import Attention, States, Token, check_next_tokens
from teka.nn.inputs import check_tokens
from teka.nn.options import AttentionOptions, BlockKeywords, takes
from teka.nn.relative import RelativeKernel


def hidden_size(dim: int, mlp_ratio: float, whole: Callable[[float], int] = int) -> int:
    """The width of an MLP's hidden layer."""
    hidden = whole(dim * mlp_ratio) if is_number(mlp_ratio) else 0
    if not 1 <= hidden <= MAX_SIZE // dim:
        raise wrong_value(
            "mlp_ratio",
            mlp_ratio,
            f"at least 1 / dim = 1 / {dim}, and a width up to {MAX_SIZE // dim}",
        )
    return hidden


def count_window_heads(window_reach: int | None, heads: int) -> int:
    """How many of the heads of a block attend in a window: half of them, or none without a reach."""
    check_sizes({"window_reach": window_reach}, or_none=True)
    if window_reach is not None and heads < 2:
        raise wrong_value(
            "heads", heads, f"at least 2 with window_reach={window_reach}, which takes half of them"
        )
    return 0 if window_reach is None else heads // 2


def make_mlp(dim: int, hidden: int, dropout: float) -> nn.Sequential:
    """A hidden layer with a GELU; dropout acts after both linear maps."""
    first, last = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
    return nn.Sequential(first, nn.GELU(), nn.Dropout(dropout), last, nn.Dropout(dropout))


class TransformerBlock(nn.Module):
    """x + Attention(norm(x)), then x + MLP(norm(x)) with a GELU; dropout after the attention, the GELU and the MLP.

    With a `window_reach` half of the heads are a second attention, which is added: softmax in a `Window` of so many
    cells around the query, near and sharp, where the others see everything by features, at a cost that stays linear.

    Source: Vaswani et al. 2017; pre-norm after Xiong et al. 2020, as in Horn et al. 2021.

    >>> import torch, teka
    >>> block = teka.nn.TransformerBlock(16, 4, relative="fourier", window_reach=1)
    >>> block(torch.randn(2, 1 + 20, 16), teka.Grid((4, 5)), num_prefix_tokens=1).shape
    torch.Size([2, 21, 16])

    Args:
        dim: Size of a token.
        heads: Number of heads.
        mlp_ratio: Width of the MLP's hidden layer over dim.
        window_reach: How many cells along every axis half of the heads see by softmax; None for no such heads.
        options: Keywords of `AttentionOptions` but context_dim and values, for the heads without a window.
    """

    @takes(BlockKeywords)
    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        mlp_ratio: float = 4.0,
        window_reach: int | None = None,
        **options: Unpack[BlockKeywords],
    ) -> None:
        super().__init__()
        check_sizes({"dim": dim, "heads": heads})
        hidden = hidden_size(dim, mlp_ratio)
        self.attention_norm = nn.LayerNorm(dim)
        near = count_window_heads(window_reach, heads)
        chosen = AttentionOptions(**options)
        if chosen.dim_head is None and near:
            if dim % heads:
                raise wrong_value(
                    "heads", heads, f"a divisor of dim = {dim}, or dim_head to be given"
                )
            options["dim_head"] = dim // heads
        self.attention = Attention(dim, heads - near, **options)
        self.window_attention: Attention | None = None
        if window_reach is not None:
            self.window_attention = Attention(
                dim,
                near,
                kernel="softmax",
                relative=RelativeKernel(
                    "window", num_axes=chosen.num_axes, heads=near, max_distance=window_reach
                ),
                dim_head=self.attention.dim_head,
                causal=chosen.causal,
                qkv_bias=chosen.qkv_bias,
                dropout=chosen.dropout,
            )
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = make_mlp(dim, hidden, self.attention.dropout.p)

    def forward(
        self,
        tokens: Float[Tensor, "batch tokens dim"],
        grid: GridLike | None = None,
        key_mask: Bool[Tensor, "batch tokens"] | None = None,
        num_prefix_tokens: int = 0,
        num_queries: int | None = None,
        *,
        positions: Float[Tensor, "*batch placed axes"] | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
        cu_seqlens: Int[Tensor, "sequences"] | None = None,
    ) -> Float[Tensor, "batch queries dim"]:
        """Transform the tokens, or the first `num_queries` of them; arguments as in `Attention.forward`.

        What stands after the lengths of a ragged batch is taken to be 0 and transformed, but no other token sees it.
        """
        check_tokens(
            "tokens", tokens, "batch", "tokens", self.attention.dim, first=self.attention.output
        )
        if lengths is not None:
            check_tensor("lengths", lengths, tokens.shape[0], dtypes=INTEGER_DTYPES)
            tokens = tokens.masked_fill(~length_mask(lengths, tokens.shape[1])[..., None], 0.0)
        places = {"positions": positions, "lengths": lengths, "cu_seqlens": cu_seqlens}
        normed = self.attention_norm(tokens)
        attended = self.attention(normed, grid, key_mask, num_prefix_tokens, num_queries, **places)
        if self.window_attention is not None:
            near = self.window_attention(normed, grid, key_mask, num_prefix_tokens, **places)
            attended = attended + near[:, :num_queries]
        tokens = tokens[:, :num_queries] + attended
        return tokens + self.mlp(self.mlp_norm(tokens))

    def step(
        self,
        token: Token,
        state: States | None = None,
        *,
        position: Float[Tensor, "*batch axes"] | None = None,
    ) -> tuple[Token, States]:
        """Transform the next token of a causal sequence, or several, given the state of the earlier tokens.

        The cost of a token does not grow with the number of earlier tokens. Arguments and errors are those of
        `Attention.step`.

        Args:
            token: The next token of each sample, shape (B, dim), or the next L tokens, shape (B, L, dim).
            state: The state that the previous call returned, or None before the first token.
            position: Position of a single token in physical units, shape (n,) or (B, n). By default, token t is at t.

        Returns:
            The transformed tokens, in the shape of `token`, and the new state.

        Raises:
            ValueError: The block is not causal, has window heads, or has a kernel without a recurrent state.
        """
        if self.window_attention is not None:
            raise wrong_argument(
                "window_reach", "a value", "None for a block that decodes step by step"
            )
        check_next_tokens(token, self.attention)
        attended, state = self.attention.step(self.attention_norm(token), state, position=position)
        token = token + attended
        return token + self.mlp(self.mlp_norm(token)), state
