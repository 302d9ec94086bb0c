"""What all intervals of one audit share: confidence, number of resamples, seed."""

from dataclasses import dataclass

from teka.errors import wrong_value


@dataclass(frozen=True)
class BootstrapSettings:
    """What all intervals of one audit share.

    Args:
        confidence: Of each interval, and of each band, between 0 and 1.
        num_resamples: Resamples of the images, and draws for the critical value of a band.
        seed: Their seed.

    Raises:
        ValueError: A confidence outside (0, 1), or less than one resample beyond each end of an interval.
    """

    confidence: float = 0.95
    num_resamples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1:
            raise wrong_value("confidence", self.confidence, "a number between 0 and 1")
        needed = round(2 / (1 - self.confidence))
        if self.num_resamples < needed:
            raise wrong_value("num_resamples", self.num_resamples, f"at least 2 / (1 − confidence) = {needed}")
