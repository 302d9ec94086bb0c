"""The mean over images of shares, as the presets report it."""

from jaxtyping import Float
from torch import Tensor

from teka.audit.statistics.bootstrap import ImageResamples, average
from teka.audit.statistics.estimate import BootstrapSettings, Estimate
from teka.audit.statistics.intervals import estimate_mean_share


def mean_share(shares: Float[Tensor, " images"], *, confidence: float, seed: int) -> Estimate:
    """The mean over images, with an interval over images.

    Args:
        shares: A share within [0, 1] of each image, such as of its shifts that are answered rightly, float64.
        confidence: Of the interval.
        seed: Seed of the bootstrap.
    """
    settings = BootstrapSettings(confidence, seed=seed)
    return estimate_mean_share(average(shares[None], ImageResamples(len(shares), settings)), confidence)
