"""A pre-norm transformer block."""

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from typing_extensions import Unpack

from teka.checks import LARGEST, WHOLE, check_sizes, check_tensor, is_number
from teka.errors import wrong_value
from teka.functional import length_mask
from teka.grid import Grid
from teka.nn.attention import Attention
from teka.nn.options import BlockKeywords, takes
from teka.nn.tokens import check_tokens


class TransformerBlock(nn.Module):
    """x + Attention(norm(x)), then x + MLP(norm(x)) with a GELU.

    Dropout acts after the attention, the GELU and the MLP.

    Source: Vaswani et al. 2017; pre-norm after Xiong et al. 2020, as in Horn et al. 2021.

    Args:
        dim: Size of a token.
        heads: Number of heads.
        mlp_ratio: Width of the MLP's hidden layer over dim.
        options: Keywords of `AttentionOptions`, all but context_dim and values.

    Raises:
        ValueError: As `Attention`, or an MLP without width.
    """

    @takes(BlockKeywords)
    def __init__(self, dim: int, heads: int, *, mlp_ratio: float = 4.0, **options: Unpack[BlockKeywords]) -> None:
        super().__init__()
        check_sizes({"dim": dim})
        hidden = int(dim * mlp_ratio) if is_number(mlp_ratio) else 0
        if not 1 <= hidden <= LARGEST:
            raise wrong_value("mlp_ratio", mlp_ratio, f"at least 1 / dim = 1 / {dim}, and a width up to {LARGEST}")
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads, **options)
        dropout = self.attention.dropout.p
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, dim), nn.Dropout(dropout)
        )

    def forward(
        self,
        tokens: Float[Tensor, "batch tokens dim"],
        grid: Grid | None = None,
        key_mask: Bool[Tensor, "batch tokens"] | None = None,
        num_prefix_tokens: int = 0,
        num_queries: int | None = None,
        *,
        positions: Float[Tensor, "*batch placed axes"] | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
    ) -> Float[Tensor, "batch queries dim"]:
        """Transform the tokens, or the first `num_queries` of them; arguments as in `Attention.forward`.

        What stands after the lengths of a ragged batch is taken to be 0 and transformed, but no other token sees it.
        """
        check_tokens("tokens", tokens, "batch", "tokens", self.attention.dim, first=self.attention.output)
        if lengths is not None:
            check_tensor("lengths", lengths, tokens.shape[0], dtypes=WHOLE)
            tokens = tokens.masked_fill(~length_mask(lengths, tokens.shape[1])[..., None], 0.0)
        attended = self.attention(
            self.attention_norm(tokens),
            *(grid, key_mask, num_prefix_tokens, num_queries),
            positions=positions,
            lengths=lengths,
        )
        tokens = tokens[:, :num_queries] + attended
        return tokens + self.mlp(self.mlp_norm(tokens))
