"""A pre-norm transformer block."""

from collections.abc import Callable

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


def hidden_size(dim: int, mlp_ratio: float, whole: Callable[[float], int] = int) -> int:
    """The width of an MLP's hidden layer."""
    hidden = whole(dim * mlp_ratio) if is_number(mlp_ratio) else 0
    if not 1 <= hidden <= LARGEST:
        raise wrong_value("mlp_ratio", mlp_ratio, f"at least 1 / dim = 1 / {dim}, and a width up to {LARGEST}")
    return hidden


def make_mlp(dim: int, hidden: int, dropout: float) -> nn.Sequential:
    """A hidden layer with a GELU; dropout acts after both linear maps."""
    first, last = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
    return nn.Sequential(first, nn.GELU(), nn.Dropout(dropout), last, nn.Dropout(dropout))


class TransformerBlock(nn.Module):
    """x + Attention(norm(x)), then x + MLP(norm(x)) with a GELU; dropout after the attention, the GELU and the MLP.

    The MLP's hidden layer has `mlp_ratio` · dim numbers; options are of `AttentionOptions`, but context_dim and values.

    Source: Vaswani et al. 2017; pre-norm after Xiong et al. 2020, as in Horn et al. 2021.
    """

    @takes(BlockKeywords)
    def __init__(self, dim: int, heads: int, *, mlp_ratio: float = 4.0, **options: Unpack[BlockKeywords]) -> None:
        super().__init__()
        check_sizes({"dim": dim})
        hidden = hidden_size(dim, mlp_ratio)
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads, **options)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = make_mlp(dim, hidden, self.attention.dropout.p)

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
        places = {"positions": positions, "lengths": lengths}
        attended = self.attention(self.attention_norm(tokens), grid, key_mask, num_prefix_tokens, num_queries, **places)
        tokens = tokens[:, :num_queries] + attended
        return tokens + self.mlp(self.mlp_norm(tokens))
