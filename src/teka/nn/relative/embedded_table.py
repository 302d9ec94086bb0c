"""The table kernel with entries that heads read from learned embeddings of the offsets."""

import torch
from torch import nn

from teka.checks import check_sizes
from teka.functional import relative
from teka.nn.relative.base import RelativeModule


class EmbeddedTable(RelativeModule):
    """`teka.functional.Table` with t_axis[Δ] = v_axisᵀ r_axis[Δ]: an embedding of every offset, and a vector a head.

    The embeddings r, which the heads share, begin as N(0, 1), and the heads' vectors v as PyTorch's linear maps, so
    that an entry begins with variance 1/3 and the heads begin unlike one another. What can be learned is what `Table`
    can learn, but steps of one size move an entry about D_p times as far.

    Source: Ramachandran et al. 2019; Cordonnier et al. 2020, §4.3, without their queries, and with D_p = 400.

    Args:
        num_axes: Number of axes n of the grid.
        heads: Number of heads.
        max_offset: The last offset in cells that has an embedding of its own.
        embedding_dim: Size D_p of an embedding.

    Raises:
        ValueError: A size below 1.
    """

    def __init__(self, num_axes: int, heads: int, *, max_offset: int, embedding_dim: int) -> None:
        super().__init__()
        sizes = {"num_axes": num_axes, "heads": heads, "max_offset": max_offset, "embedding_dim": embedding_dim}
        check_sizes(sizes)
        self.embeddings = nn.ModuleList(nn.Embedding(2 * max_offset + 1, embedding_dim) for _ in range(num_axes))
        self.head_vectors = nn.ModuleList(nn.Linear(embedding_dim, heads, bias=False) for _ in range(num_axes))

    def forward(self) -> relative.Table:
        """The kernel with the present parameters."""
        axes = zip(self.head_vectors, self.embeddings, strict=True)
        return relative.Table(torch.stack([vectors(embedding.weight).T for vectors, embedding in axes], dim=1))
