"""The Fourier kernel with learned waves."""

import math

import torch
from torch.nn import Parameter
from torch.nn.functional import softplus

from teka.checks import POSITIVE, check_sizes, is_number, is_positive
from teka.errors import wrong_value
from teka.functional import relative
from teka.functional.relative import NUM_FOURIER_WAVES
from teka.nn.relative.base import RelativeModule
from teka.nn.relative.initial import inverse_softplus, random_directions

SHORTEST_WAVE = 2.0
LONGEST_WAVE = 64.0


class Fourier(RelativeModule):
    """`teka.functional.Fourier` with learned ω and θ, and a_0 and a_f as softplus of a learned number.

    At first wavelengths are log-uniform between the shortest and the longest in random directions, θ = 0, a_0 = 1 and
    a_f = A/F, so that c is 1 + 2A at the query itself and between 1 and 1 + 2A elsewhere.

    Args:
        num_axes: Number of axes n of the grid.
        heads: Number of heads.
        num_waves: Number of waves F.
        longest_wave: The longest wave at first, in physical units.
        shortest_wave: The shortest wave at first, in physical units.
        wave_weight: A > 0, the waves' weight Σ_f a_f at first over the constant a_0: how sharply c peaks.

    Raises:
        ValueError: A size below 1, waves whose lengths cannot be, or a weight that is not positive.
    """

    def __init__(
        self,
        num_axes: int,
        heads: int,
        *,
        num_waves: int = NUM_FOURIER_WAVES,
        longest_wave: float = LONGEST_WAVE,
        shortest_wave: float = SHORTEST_WAVE,
        wave_weight: float = 1.0,
    ) -> None:
        super().__init__()
        check_sizes({"num_axes": num_axes, "heads": heads, "num_waves": num_waves})
        if not is_positive(shortest_wave):
            raise wrong_value("shortest_wave", shortest_wave, POSITIVE)
        if not (is_number(longest_wave) and longest_wave >= shortest_wave):
            raise wrong_value("longest_wave", longest_wave, f"finite and at least shortest_wave = {shortest_wave:g}")
        if not is_positive(wave_weight):
            raise wrong_value("wave_weight", wave_weight, POSITIVE)
        length = shortest_wave * (longest_wave / shortest_wave) ** torch.rand(heads, num_waves, 1)
        self.frequency = Parameter(2 * math.pi / length * random_directions(heads, num_waves, num_axes))
        self.phase = Parameter(torch.zeros(heads, num_waves))
        self.raw_constant_weight = Parameter(inverse_softplus(torch.ones(heads)))
        self.raw_amplitude = Parameter(inverse_softplus(torch.full((heads, num_waves), wave_weight / num_waves)))

    def forward(self) -> relative.Fourier:
        """The kernel with the present parameters."""
        constant_weight, amplitude = softplus(self.raw_constant_weight), softplus(self.raw_amplitude)
        return relative.Fourier(constant_weight, amplitude, self.frequency, self.phase)
