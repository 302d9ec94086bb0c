"""Images of mean 0 and standard deviation 1 in each channel."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from teka.errors import wrong_shape, wrong_value


@dataclass(frozen=True)
class Normalize:
    """Subtract a mean from each channel and divide by a standard deviation.

        x ↦ (x − mean_c) / deviation_c

    Take both from the training images, `Normalize.of(dataset.train.images)`, and apply them to every part. A shift
    fills with background, which is 0 before this and −mean_c / deviation_c after it: shift first.

    Args:
        mean: One number for each channel.
        deviation: One positive number for each channel.

    Raises:
        ValueError: Not one number of each kind for each channel, one that is not finite, or a deviation that is not
            positive.
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.deviation) or not self.mean:
            raise wrong_value("deviation", self.deviation, f"one number for each channel, like mean {self.mean}")
        if not all(-float("inf") < mean < float("inf") for mean in self.mean):
            raise wrong_value("mean", self.mean, "finite numbers")
        if not all(0 < deviation < float("inf") for deviation in self.deviation):
            raise wrong_value("deviation", self.deviation, "positive finite numbers")

    @classmethod
    def of(cls, images: Tensor) -> "Normalize":
        """The one after which these images have mean 0 and mean square 1 in each channel.

        Args:
            images: Floating point, shape (N, C, H, W).

        Raises:
            ValueError: Another rank, or a channel that is the same in every pixel.
        """
        if images.ndim != 4 or not images.numel():
            raise wrong_shape("images", images.shape, "(images, channels, height, width), none of them 0")
        if not images.is_floating_point():
            raise wrong_value("images.dtype", images.dtype, "a floating point type")
        deviation, mean = torch.std_mean(images.double(), dim=(0, 2, 3), correction=0)
        return cls(tuple(mean.tolist()), tuple(deviation.tolist()))

    def __call__(self, images: Tensor) -> Float[Tensor, "images channels height width"]:
        """The images, normalised.

        Args:
            images: Floating point, shape (N, C, H, W).

        Raises:
            ValueError: Another rank, another number of channels, or images that are not floating point.
        """
        if images.ndim != 4 or images.shape[1] != len(self.mean):
            raise wrong_shape("images", images.shape, f"(images, {len(self.mean)}, height, width)")
        if not images.is_floating_point():
            raise wrong_value("images.dtype", images.dtype, "a floating point type")
        mean, deviation = (images.new_tensor(given)[:, None, None] for given in (self.mean, self.deviation))
        return (images - mean) / deviation
