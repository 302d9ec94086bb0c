"""What relative kernels with learned parameters declare, and those that are made of waves."""

import math
from abc import abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.functional import normalize, softplus

from teka import functional as kernels
from teka._compat import replace
from teka.checks import POSITIVE, check_tensor, check_tensor_sizes, is_number, is_positive
from teka.errors import wrong_type, wrong_value
from teka.functional import Relative
from teka.functional.relative.fourier import NUM_FOURIER_WAVES
from teka.functional.relative.rotary import LENGTH_SHARE, ROTARY_NORMALIZERS, check_normalizer
from teka.functional.relative.rotation import NUM_FREQUENCIES, initial_frequency, rotation_scale

SHORTEST_WAVE = 2.0
LONGEST_WAVE = 64.0


class RelativeModule(nn.Module):
    """A relative kernel with learned parameters, and what it declares to the layers that use it."""

    has_own_heads: ClassVar[bool] = (
        False  # whether half of several heads attend by it alone, unless told otherwise
    )
    needs_content: ClassVar[bool] = (
        False  # whether it acts inside the content kernel, and so has no heads of its own
    )
    uses_query: ClassVar[bool] = False  # whether it looks at the query
    rotates: ClassVar[bool] = (
        False  # whether it rotates keys, so that a bias of theirs does not cancel in the softmax
    )
    # The parameters whose first axis is that of the heads, which every class says for itself, None if not known.
    head_parameters: ClassVar[tuple[str, ...] | None] = None

    @property
    def num_position_features(self) -> int:
        """Numbers that it adds to queries and keys, 0 but for a kernel that goes through the random features."""
        return 0

    @abstractmethod
    def forward(self) -> Relative:
        """The kernel with the present parameters."""

    def by_halves(self, size: int) -> Relative | None:
        """The kernel for vectors of a size in whose halves the first and the second features of all pairs are, if any.

        It rotates pairs, and all features are in one.
        """
        return None


class Rotation(RelativeModule):
    """`teka.functional.Rotation` with learned ω, α and β.

    α, β ~ N(0, σ²) for every head, axis and scale; ω = 8^(−s/2), shared by axes and heads (Horn et al. 2021).

    >>> import torch, teka
    >>> first = teka.nn.Rotation(num_axes=2, heads=2, dim_head=8)
    >>> second = teka.nn.Rotation(num_axes=2, heads=2, dim_head=8, frequency=first.frequency, weight_scale=0.0)
    >>> second.frequency is first.frequency, bool(second().log_at(torch.randn(5, 2)).any())
    (True, False)

    Args:
        num_axes: Number of axes n of the grid.
        heads: Number of heads.
        dim_head: Size of queries and keys, which sets the scale 1/√(d + 2 · axes · scales).
        num_frequencies: Number of scales.
        frequency: A parameter to share, shape (scales,), instead of one of its own.
        weight_scale: σ ≥ 0; with 0 attention begins without position; 8 learnt better than 1 with three of six kernels.
    """

    head_parameters = ("cosine_weight", "sine_weight")
    kernel: ClassVar[type[kernels.Rotation]] = kernels.Rotation

    def __init__(
        self,
        num_axes: int,
        heads: int,
        dim_head: int,
        *,
        num_frequencies: int = NUM_FREQUENCIES,
        frequency: Parameter | None = None,
        weight_scale: float = 1.0,
    ) -> None:
        super().__init__()
        sizes = {
            "num_axes": num_axes,
            "heads": heads,
            "dim_head": dim_head,
            "num_frequencies": num_frequencies,
        }
        check_tensor_sizes(sizes)
        if frequency is not None:
            check_tensor("frequency", frequency, "scales")
            if not isinstance(frequency, Parameter):
                raise wrong_type("frequency", frequency, "a torch.nn.Parameter")
        if not (is_number(weight_scale) and weight_scale >= 0):
            raise wrong_value("weight_scale", weight_scale, "a finite number of at least 0")
        dtype = torch.get_default_dtype()
        self.frequency = (
            Parameter(initial_frequency(num_frequencies).to(dtype))
            if frequency is None
            else frequency
        )
        shape = (heads, num_axes, self.frequency.shape[0])
        self.cosine_weight = Parameter(weight_scale * torch.randn(shape))
        self.sine_weight = Parameter(weight_scale * torch.randn(shape))
        self.scale = rotation_scale(dim_head, num_axes, self.frequency.shape[0])

    def forward(self) -> kernels.Rotation:
        return self.kernel(self.frequency, self.cosine_weight, self.sine_weight, self.scale)


class RotationJoint(Rotation):
    """`teka.functional.RotationJoint` with what `Rotation` learns: equivariant in expectation only.

    >>> import torch, teka
    >>> relative = teka.nn.RotationJoint(num_axes=2, heads=2, dim_head=8, num_frequencies=4)
    >>> layer = teka.nn.Attention(16, 2, kernel="positive", relative=relative)
    >>> layer.equivariance, relative.num_position_features
    ({'shift': 'in expectation'}, 16)
    """

    needs_content = True
    head_parameters = Rotation.head_parameters
    kernel = kernels.RotationJoint

    @property
    def num_position_features(self) -> int:
        return 2 * self.cosine_weight.shape[1] * self.cosine_weight.shape[2]


class Fourier(RelativeModule):
    """`teka.functional.Fourier` with learned ω and θ, and a_0 and a_f as softplus of a learned number.

    At first wavelengths are log-uniform between the shortest and the longest in random directions, θ = 0, a_0 = 1 and
    a_f = A/F, so that c is 1 + 2A at the query itself and between 1 and 1 + 2A elsewhere.

    >>> import torch, teka
    >>> relative = teka.nn.Fourier(num_axes=2, heads=1, wave_weight=3.0)
    >>> relative().log_at(torch.zeros(1, 2)).exp().round(decimals=3).item()  # 1 + 2A
    7.0

    Args:
        num_axes: Number of axes n of the grid.
        heads: Number of heads.
        num_waves: Number of waves F.
        longest_wave: The longest wave at first, in physical units.
        shortest_wave: The shortest.
        wave_weight: A > 0, the waves' weight Σ_f a_f at first over the constant a_0: how sharply c peaks.
    """

    head_parameters = ("frequency", "phase", "raw_constant_weight", "raw_amplitude")

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
        check_tensor_sizes({"num_axes": num_axes, "heads": heads, "num_waves": num_waves})
        if not is_positive(shortest_wave):
            raise wrong_value("shortest_wave", shortest_wave, POSITIVE)
        if not (is_number(longest_wave) and longest_wave >= shortest_wave):
            raise wrong_value(
                "longest_wave",
                longest_wave,
                f"finite and at least shortest_wave = {shortest_wave:g}",
            )
        if not is_positive(wave_weight):
            raise wrong_value("wave_weight", wave_weight, POSITIVE)
        length = shortest_wave * (longest_wave / shortest_wave) ** torch.rand(heads, num_waves, 1)
        self.frequency = Parameter(2 * math.pi / length * _directions(heads, num_waves, num_axes))
        self.phase = Parameter(torch.zeros(heads, num_waves))
        self.raw_constant_weight = Parameter(inverse_softplus(torch.ones(heads)))
        self.raw_amplitude = Parameter(
            inverse_softplus(torch.full((heads, num_waves), wave_weight / num_waves))
        )

    def forward(self) -> kernels.Fourier:
        constant_weight, amplitude = (
            softplus(self.raw_constant_weight),
            softplus(self.raw_amplitude),
        )
        return kernels.Fourier(constant_weight, amplitude, self.frequency, self.phase)


class Rotary(RelativeModule):
    """`teka.functional.Rotary` with learned ω, of lengths base^(−p / pairs) in random directions at first.

    >>> import torch, teka
    >>> relative = teka.nn.Rotary(num_axes=2, heads=1, num_pairs=4, base=10_000.0)
    >>> relative().frequency.norm(dim=-1).detach().round(decimals=4)
    tensor([[1.0000, 0.1000, 0.0100, 0.0010]])

    Args:
        num_axes: Number of axes n of the grid.
        heads: Number of heads.
        num_pairs: Number of pairs of features that are rotated, at most half of the content kernel's features.
        base: Ratio of the longest wave to the shortest, nearly: 10 in Heo et al. 2024, 10,000 in Su et al. 2021 (text).
        normalizer: What the denominator of a kernel with features is made of, "mixed", "nonnegative", "lengths" or
            "features"; see `teka.functional.Rotary`. No parameter depends on it.
        length_share: λ of "mixed": outputs are at most 1/λ times the largest value.
    """

    needs_content = True
    rotates = True
    head_parameters = ("frequency",)

    def __init__(
        self,
        num_axes: int,
        heads: int,
        num_pairs: int,
        *,
        base: float = 10.0,
        normalizer: str = ROTARY_NORMALIZERS[0],
        length_share: float = LENGTH_SHARE,
    ) -> None:
        super().__init__()
        check_tensor_sizes({"num_axes": num_axes, "heads": heads, "num_pairs": num_pairs})
        if not is_positive(base):
            raise wrong_value("base", base, POSITIVE)
        check_normalizer(normalizer, length_share)
        self.normalizer, self.length_share = normalizer, length_share
        length = base ** -(torch.arange(num_pairs) / num_pairs)
        self.frequency = Parameter(length[:, None] * _directions(heads, num_pairs, num_axes))

    def forward(self) -> kernels.Rotary:
        return kernels.Rotary(self.frequency, self.normalizer, self.length_share)

    def by_halves(self, size: int) -> kernels.Rotary | None:
        return replace(self(), pairing="halves") if 2 * self.frequency.shape[1] == size else None


def inverse_softplus(value: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The positive number whose softplus is the given one, log(eˣ − 1)."""
    return value + torch.log(-torch.expm1(-value))


def _directions(
    heads: int, num_directions: int, num_axes: int
) -> Float[Tensor, "heads directions axes"]:
    """Unit vectors, uniform over directions, from torch's global generator."""
    return normalize(torch.randn(heads, num_directions, num_axes), dim=-1)
