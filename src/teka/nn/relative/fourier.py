"""The Fourier kernel with learned waves."""

import math

import torch
from torch.nn import Parameter
from torch.nn.functional import softplus

from teka.functional import relative
from teka.functional.relative import NUM_FOURIER_WAVES
from teka.nn.relative.base import RelativeModule
from teka.nn.relative.initial import check_sizes, inverse_softplus, random_directions

SHORTEST_WAVE = 2.0
LONGEST_WAVE = 64.0


class Fourier(RelativeModule):
    """`teka.functional.Fourier` with learned ω and θ, and a_0 and a_f as softplus of a learned number.

    At first wavelengths are log-uniform between 2 and 64 units of length in random directions, θ = 0, a_0 = 1 and a_f =
    1/F, so that c is 3 at the query itself and between 1 and 3 elsewhere.

    Args:
        num_axes: Number of axes n of the grid.
        heads: Number of heads.
        num_waves: Number of waves F.

    Raises:
        ValueError: A size below 1.
    """

    def __init__(self, num_axes: int, heads: int, *, num_waves: int = NUM_FOURIER_WAVES) -> None:
        super().__init__()
        check_sizes({"num_axes": num_axes, "heads": heads, "num_waves": num_waves})
        length = SHORTEST_WAVE * (LONGEST_WAVE / SHORTEST_WAVE) ** torch.rand(heads, num_waves, 1)
        self.frequency = Parameter(2 * math.pi / length * random_directions(heads, num_waves, num_axes))
        self.phase = Parameter(torch.zeros(heads, num_waves))
        self.raw_constant_weight = Parameter(inverse_softplus(torch.ones(heads)))
        self.raw_amplitude = Parameter(inverse_softplus(torch.full((heads, num_waves), 1 / num_waves)))

    def forward(self) -> relative.Fourier:
        """The kernel with the present parameters."""
        constant_weight, amplitude = softplus(self.raw_constant_weight), softplus(self.raw_amplitude)
        return relative.Fourier(constant_weight, amplitude, self.frequency, self.phase)
