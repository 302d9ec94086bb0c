"""A post-norm transformer block, a layer of BERT."""

from jaxtyping import Float
from torch import Tensor, nn

from teka.errors import wrong_value
from teka.grid import Grid
from teka.nn import Attention

NORM_EPSILON = 1e-12


class PostNormBlock(nn.Module):
    """x ← norm(x + W attention(x)), then norm(x + MLP(x)) with a GELU.

    W is a linear map of its own after that of the attention, as in the code of Cordonnier et al.

    Source: Vaswani et al. 2017; Devlin et al. 2019 (BERT), with its ε = 10⁻¹² of the norms.

    Args:
        attention: The attention; tokens of size attention.dim.
        mlp_ratio: Width of the MLP's hidden layer over that size.
        dropout: Probability of dropping a number after W and after the MLP.

    Raises:
        ValueError: An MLP without width.
    """

    def __init__(self, attention: Attention, *, mlp_ratio: float = 4.0, dropout: float = 0.0) -> None:
        super().__init__()
        dim = attention.dim
        hidden = round(dim * mlp_ratio)
        if hidden < 1:
            raise wrong_value("mlp_ratio", mlp_ratio, f"at least 1 / dim = 1 / {dim}")
        self.attention = attention
        self.attention_output = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(dropout))
        self.attention_norm = nn.LayerNorm(dim, eps=NORM_EPSILON)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim), nn.Dropout(dropout))
        self.mlp_norm = nn.LayerNorm(dim, eps=NORM_EPSILON)

    def forward(self, tokens: Float[Tensor, "batch tokens dim"], grid: Grid) -> Float[Tensor, "batch tokens dim"]:
        """Transform the tokens.

        Args:
            tokens: Tokens, shape (B, L, dim).
            grid: The grid whose cells they are.
        """
        tokens = self.attention_norm(tokens + self.attention_output(self.attention(tokens, grid)))
        return self.mlp_norm(tokens + self.mlp(tokens))
