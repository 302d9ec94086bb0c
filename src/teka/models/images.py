"""What the baselines check of their sizes and images."""

from jaxtyping import Float
from torch import Tensor

from teka.checks import check_tensor
from teka.errors import wrong_value


def read_image_size(image_size: int | tuple[int, int], smallest: int = 1) -> tuple[int, int]:
    """Height and width of a model's images.

    Args:
        image_size: Height and width in pixels, or one number for both.
        smallest: Smallest side that the model can take.

    Raises:
        ValueError: Not two sides, or one that is too small.
    """
    size = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    if len(size) != 2 or min(size) < smallest:
        raise wrong_value("image_size", image_size, f"height and width of at least {smallest} pixels")
    return size


def check_images(
    images: Float[Tensor, "batch channels height width"], in_channels: int, image_size: tuple[int, int]
) -> None:
    """Refuse images that a model was not made for.

    Args:
        images: Images.
        in_channels: Channels that the model takes.
        image_size: Height and width that it takes.

    Raises:
        ValueError: Another shape.
    """
    check_tensor("images", images, "batch", in_channels, *image_size)
