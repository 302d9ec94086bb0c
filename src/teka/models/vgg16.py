"""VGG-16."""

from jaxtyping import Float
from torch import Tensor, nn

from teka.checks import check_sizes
from teka.models.images import check_images, read_image_size

# Channels of each convolution over `width`; a max pooling follows each group. Configuration D.
GROUPS = ((1, 1), (2, 2), (4, 4, 4), (8, 8, 8), (8, 8, 8))
POOLED_SIDE = 7


class VGG16(nn.Module):
    """Thirteen 3 × 3 convolutions with ReLUs in five groups, then three linear layers.

    Configuration D without batch normalisation, 134,301,514 parameters for 10 classes and 3 channels. Average pooling
    brings what the convolutions leave to 7 × 7, whatever the image's size; what a 32 × 32 image leaves is one place,
    which is then repeated 49 times.

    Dropout follows both hidden linear layers (Simonyan and Zisserman 2015, §3.1). Initialisation is N(0, 0.01²) for the
    linear layers, as there, and N(0, 2 / fan_out) for the convolutions (He et al. 2015), with biases of 0, as in the
    code of Horn et al.: from 0.01 everywhere a net this deep may stall, so that the authors trained a smaller one
    first (§3.1). There is no normalisation, as in that paper.

    Source: Simonyan and Zisserman 2015, Table 1, column D; He et al. 2015 (Delving deep into rectifiers), §2.2; Horn et
    al. 2021, Table 1.

    Args:
        image_size: Height and width in pixels, or one number for both; at least 32.
        in_channels: Channels of the images.
        num_classes: Number of logits.
        width: Channels of the first convolutions; the others have 2, 4 and 8 times as many.
        hidden: Width of the two hidden linear layers.
        dropout: Probability of dropping a number in the linear layers.

    Raises:
        ValueError: A size that is not positive, or an image too small for the five poolings.
    """

    def __init__(
        self,
        image_size: int | tuple[int, int],
        in_channels: int,
        num_classes: int,
        *,
        width: int = 64,
        hidden: int = 4096,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        check_sizes({"in_channels": in_channels, "num_classes": num_classes, "width": width, "hidden": hidden})
        self.image_size = read_image_size(image_size, 2 ** len(GROUPS))
        self.in_channels = in_channels
        layers: list[nn.Module] = []
        channels = in_channels
        for group in GROUPS:
            for multiple in group:
                layers += [nn.Conv2d(channels, multiple * width, 3, padding=1), nn.ReLU()]
                channels = multiple * width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(POOLED_SIDE)
        self.head = nn.Sequential(
            nn.Linear(channels * POOLED_SIDE**2, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, num_classes),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.01)
            if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch classes"]:
        """Logits of images.

        Args:
            images: Images, shape (B, C, H, W).

        Raises:
            ValueError: Another number of channels or another size than the model was made for.
        """
        check_images(images, self.in_channels, self.image_size)
        return self.head(self.pool(self.features(images)).flatten(1))
