"""AlexNet for small images."""

from jaxtyping import Float
from torch import Tensor, nn

from teka.checks import check_sizes
from teka.models.images import check_images, read_image_size

# With a smaller side nothing is left for the last pooling: 29 → 8 → 4 → 2 → 1, 28 → 7 → 3 → 1.
SMALLEST_SIDE = 29


class AlexNet(nn.Module):
    """Five convolutions with ReLUs and max pooling, and one linear map of what is left.

    The form that Horn et al. 2021 trained, 2,472,266 parameters for 10 classes and 3 channels: the channels of
    torchvision's AlexNet, after Krizhevsky 2014 (64, 192, 384, 256, 256; kernels 11 × 11 of stride 4, 5 × 5, then
    3 × 3), padding 5 in the first, pooling 2 × 2 without overlap, and no hidden linear layers. A 32 × 32 image becomes
    one place of 256 numbers.

    Dropout follows the ReLUs of the first, third and fifth convolution, as in the code of Horn et al.; Krizhevsky et
    al. 2012 (§4.2) have it in the linear layers that are left out. Initialisation is PyTorch's, U(±1/√fan_in), as in
    that code: N(0, 0.01²) with some biases of 1 (Krizhevsky et al. 2012, §5) is made for pixels from 0 to 255. There is
    no normalisation, as in that code, where Krizhevsky et al. 2012 (§3.3) normalise local responses.

    Source: Krizhevsky, Sutskever and Hinton 2012; Krizhevsky 2014 (One weird trick); Horn et al. 2021, Table 1, and
    their notebook CNN/CIFAR10.ipynb.

    Args:
        image_size: Height and width in pixels, or one number for both; at least 29.
        in_channels: Channels of the images.
        num_classes: Number of logits.
        dropout: Probability of dropping a number.

    Raises:
        ValueError: A size that is not positive, or an image too small for the poolings.
    """

    def __init__(
        self, image_size: int | tuple[int, int], in_channels: int, num_classes: int, *, dropout: float = 0.5
    ) -> None:
        super().__init__()
        check_sizes({"in_channels": in_channels, "num_classes": num_classes})
        self.image_size = read_image_size(image_size, SMALLEST_SIDE)
        self.in_channels = in_channels
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, 64, 11, stride=4, padding=5),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.MaxPool2d(2),
        )
        # A stride of 4 with that padding leaves ⌈side / 4⌉ places, and three poolings an eighth of them.
        height, width = ((side + 3) // 4 // 8 for side in self.image_size)
        self.head = nn.Linear(256 * height * width, num_classes)

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch classes"]:
        """Logits of images.

        Args:
            images: Images, shape (B, C, H, W).

        Raises:
            ValueError: Another number of channels or another size than the model was made for.
        """
        check_images(images, self.in_channels, self.image_size)
        return self.head(self.features(images).flatten(1))
