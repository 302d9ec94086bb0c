"""A pre-norm block around an attention of any kind."""

from jaxtyping import Float
from torch import Tensor, nn

from teka.errors import wrong_value


class PreNormBlock(nn.Module):
    """x + attention(norm(x)), then x + MLP(norm(x)) with a GELU: `teka.nn.TransformerBlock` for another attention.

    Source: Vaswani et al. 2017; pre-norm after Xiong et al. 2020, as in Horn et al. 2021.

    Args:
        attention: Tokens to tokens, (B, L, dim) to (B, L, dim).
        dim: Size of a token.
        mlp_ratio: Width of the MLP's hidden layer over dim.
        dropout: Probability of dropping a number after the attention, the GELU and the MLP.

    Raises:
        ValueError: An MLP without width.
    """

    def __init__(self, attention: nn.Module, dim: int, *, mlp_ratio: float = 4.0, dropout: float = 0.0) -> None:
        super().__init__()
        hidden = int(dim * mlp_ratio)
        if hidden < 1:
            raise wrong_value("mlp_ratio", mlp_ratio, f"at least 1 / dim = 1 / {dim}")
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = attention
        self.attention_dropout = nn.Dropout(dropout)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, dim), nn.Dropout(dropout)
        )

    def forward(self, tokens: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens dim"]:
        """Transform the tokens.

        Args:
            tokens: Tokens, shape (B, L, dim).
        """
        tokens = tokens + self.attention_dropout(self.attention(self.attention_norm(tokens)))
        return tokens + self.mlp(self.mlp_norm(tokens))
