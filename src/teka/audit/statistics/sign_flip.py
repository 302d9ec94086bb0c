"""The paired permutation test: does it matter which of two models gave which answer?"""

import torch
from jaxtyping import Float
from torch import Tensor

_CHUNK = 256


def sign_flip_test(
    differences: Float[Tensor, "numbers images"], *, num_flips: int, seed: int
) -> Float[Tensor, " numbers"]:
    """Two-sided p-values that the means of paired differences are zero.

    If the two models were one, each image's difference would have either sign alike. p = (1 + the number of random
    flips of the images' signs with |mean| at least as large) / (1 + flips), which is valid for flips drawn at random.

    Source: Fisher, "The Design of Experiments" (1935), §21, for the test; Phipson and Smyth, "Permutation p-values
    should never be zero", Statistical Applications in Genetics and Molecular Biology 9 (2010), article 39.

    Args:
        differences: A difference of each image, for one number or more, float64. All numbers are flipped together.
        num_flips: Number of random flips.
        seed: Their seed.
    """
    generator = torch.Generator().manual_seed(seed)
    columns = differences.T.contiguous()
    # Sums that differ only by rounding are equal.
    observed = differences.sum(dim=1).abs() - 1e-9 * differences.abs().sum(dim=1)
    count = torch.zeros(len(differences), dtype=torch.int64)
    for start in range(0, num_flips, _CHUNK):
        size = min(_CHUNK, num_flips - start)
        heads = torch.randint(2, (size, differences.shape[1]), generator=generator, dtype=torch.int8)
        signs = heads.to(torch.float64).mul_(2).sub_(1)
        count += ((signs @ columns).abs() >= observed).sum(dim=0)
    return (1 + count.to(torch.float64)) / (1 + num_flips)
