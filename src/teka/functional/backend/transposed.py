"""The transpose of tokens in memory."""

from jaxtyping import Float
from torch import Tensor


def transposed(tokens: Float[Tensor, "tokens channels"]) -> Float[Tensor, "channels tokens"]:
    """Tokens with the channels first, each channel in one piece.

    Rows that lie apart are first put together: torch has a fast copy for the transpose of a whole matrix, and a slow
    one, several times over where rows lie a power of two apart, for any other.
    """
    return tokens.contiguous().T.contiguous()
