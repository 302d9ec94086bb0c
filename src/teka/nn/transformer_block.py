"""A pre-norm transformer block."""

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from teka.checks import LARGEST, WHOLE, check_sizes, check_tensor, is_number
from teka.errors import wrong_value
from teka.functional.placement import length_mask
from teka.grid import Grid
from teka.nn.attention import Attention
from teka.nn.content_kernel import ContentKernel
from teka.nn.relative import RelativeModule
from teka.nn.tokens import check_tokens


class TransformerBlock(nn.Module):
    """x + Attention(norm(x)), then x + MLP(norm(x)) with a GELU.

    Source: Vaswani et al. 2017; pre-norm after Xiong et al. 2020, as in Horn et al. 2021.

    Args:
        dim: Size of a token.
        heads: Number of heads.
        dim_head: Size of a head, dim / heads by default.
        mlp_ratio: Width of the MLP's hidden layer over dim.
        kernel: Content kernel; see `Attention`.
        relative: Relative kernel; see `Attention`.
        num_features: Number of random features; see `Attention`.
        causal: Whether no token sees a later one; see `Attention`.
        qkv_bias: Whether queries, keys and values have a bias.
        dropout: Probability of dropping a number after the attention, the GELU and the MLP.
        backend: Backend of the attention.
        num_axes: Number of axes of the grids to come; see `Attention`.
        position_heads: Number of last heads that attend by position alone; see `Attention`.
        num_waves: Number of waves F of relative="fourier".
        rotary_normalizer: What the denominator of relative="rotary" is made of; see `Attention`.
        query_key: "plain", "normalized" or "centred"; see `Attention`.
        gate: Whether a sigmoid of the token gates the heads' output; see `Attention`.
        value_convolution: Side of a depthwise convolution of the values; see `Attention`.

    Raises:
        ValueError: As `Attention`, or an MLP without width.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        dim_head: int | None = None,
        mlp_ratio: float = 4.0,
        kernel: str | ContentKernel = "squared_relu",
        relative: str | RelativeModule | None = "rotary",
        num_features: int | None = None,
        causal: bool = False,
        qkv_bias: bool = True,
        dropout: float = 0.0,
        backend: str = "auto",
        num_axes: int = 2,
        position_heads: int | None = None,
        num_waves: int | None = None,
        rotary_normalizer: str | None = None,
        query_key: str = "plain",
        gate: bool = False,
        value_convolution: int | None = None,
    ) -> None:
        super().__init__()
        check_sizes({"dim": dim})
        hidden = int(dim * mlp_ratio) if is_number(mlp_ratio) else 0
        if not 1 <= hidden <= LARGEST:
            raise wrong_value("mlp_ratio", mlp_ratio, f"at least 1 / dim = 1 / {dim}, and a width up to {LARGEST}")
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = Attention(
            dim,
            heads,
            dim_head=dim_head,
            kernel=kernel,
            relative=relative,
            num_features=num_features,
            causal=causal,
            qkv_bias=qkv_bias,
            dropout=dropout,
            backend=backend,
            num_axes=num_axes,
            position_heads=position_heads,
            num_waves=num_waves,
            rotary_normalizer=rotary_normalizer,
            query_key=query_key,
            gate=gate,
            value_convolution=value_convolution,
        )
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
            grid,
            key_mask,
            num_prefix_tokens,
            num_queries,
            positions=positions,
            lengths=lengths,
        )
        tokens = tokens[:, :num_queries] + attended
        return tokens + self.mlp(self.mlp_norm(tokens))
