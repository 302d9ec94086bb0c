"""The matrix of each offset as a product of a head's value and output projections, whose rank is the size of a head."""

import copy

import torch
from jaxtyping import Float
from torch import Tensor, nn

from teka.convert.same_convolution import Convolution, check_same_convolution, offset_matrices
from teka.errors import wrong_value


def factor_matrices(
    matrices: Float[Tensor, "heads out_channels in_channels"], dim_head: int, *, epsilon: float
) -> tuple[Float[Tensor, "heads width in_channels"], Float[Tensor, "heads out_channels width"]]:
    """V_h and O_h of at most dim_head numbers with W_h = O_h V_h.

    With D_h ≥ D_out, O_h is the identity; else with D_h ≥ D_in, V_h is; else they come from the singular values of W_h.

    Args:
        matrices: W_h.
        dim_head: Size D_h of a head.
        epsilon: Rounding of the weights; singular values below epsilon · max(D_in, D_out) times the largest are 0.

    Raises:
        ValueError: A W_h of a rank above D_h.
    """
    heads, num_out, num_in = matrices.shape
    if dim_head >= num_out:
        return matrices, torch.eye(num_out).to(matrices).expand(heads, -1, -1)
    if dim_head >= num_in:
        return torch.eye(num_in).to(matrices).expand(heads, -1, -1), matrices
    left, sizes, right = torch.linalg.svd(matrices, full_matrices=False)
    rank = (sizes > epsilon * max(num_in, num_out) * sizes[:, :1]).sum(dim=1)
    highest = int(rank.argmax())
    if rank[highest] > dim_head:
        expected = (
            f"at least {int(rank[highest])}, the rank of the weights at offset {highest} of the kernel; "
            "teka.convert.low_rank_convolution gives the nearest convolution of a lower rank"
        )
        raise wrong_value("dim_head", dim_head, expected)
    root = sizes[:, :dim_head].sqrt()
    return root[..., None] * right[:, :dim_head], left[..., :dim_head] * root[:, None]


def low_rank_convolution(convolution: nn.Module, rank: int) -> tuple[Convolution, float]:
    """The nearest convolution whose matrix at every offset has at most a given rank, and how far it is.

    Heads of size D_h give every offset a matrix of rank ≤ D_h. The nearest such matrix in the Frobenius norm keeps the
    largest singular values.

    Source: Eckart & Young 1936; the remark on D_h and D_out of Cordonnier et al. 2020, §3.1.

    Args:
        convolution: A convolution that `attention_from_convolution` takes; it is left as it is.
        rank: The rank.

    Returns:
        The convolution and ‖W − W'‖ / ‖W‖, which is the root mean square error of its outputs, over theirs without the
        bias, for inputs that are independent, of mean 0 and of one variance.

    Raises:
        ValueError: A convolution that cannot be converted, or a rank below 1.
    """
    convolution = check_same_convolution(convolution)
    if rank < 1:
        raise wrong_value("rank", rank, "at least 1")
    left, sizes, right = torch.linalg.svd(offset_matrices(convolution), full_matrices=False)
    nearest = (left[..., :rank] * sizes[:, None, :rank]) @ right[:, :rank]
    result = copy.deepcopy(convolution)
    with torch.no_grad():
        result.weight.copy_(nearest.permute(1, 2, 0).unflatten(2, convolution.kernel_size))
    total = float(sizes.square().sum())
    return result, (float(sizes[:, rank:].square().sum()) / total) ** 0.5 if total else 0.0
