"""Linear projections from tokens to attention heads and back."""

from jaxtyping import Float
from torch import Tensor, nn

from teka.functional.shapes import Outputs
from teka.nn.inputs import Tokens


def project_heads(
    linear: nn.Module, tokens: Tokens, dim_head: int
) -> Float[Tensor, "batch heads tokens dim_head"]:
    """Project tokens and split the result into heads of size `dim_head`."""
    return linear(tokens).unflatten(-1, (-1, dim_head)).transpose(1, 2)


def join_heads(linear: nn.Module, heads: Outputs) -> Tokens:
    """Concatenate the heads of each token and project them."""
    return linear(heads.transpose(1, 2).flatten(2))
