"""ResNet-18."""

from jaxtyping import Float
from torch import Tensor, nn

from teka.checks import check_sizes
from teka.errors import unknown_name
from teka.models.images import check_images, read_image_size

# Channels of each of the four stages over `width`; from the second on, a stage halves the sides.
STAGES = (1, 2, 4, 8)
BLOCKS_PER_STAGE = 2
STEMS = ("7x7", "3x3")


class ResidualBlock(nn.Module):
    """relu(shortcut(x) + f(x)) with f = norm ∘ conv ∘ relu ∘ norm ∘ conv, convolutions of 3 × 3.

    The shortcut is the identity, or where the shape changes a 1 × 1 convolution with a normalisation (option B).

    Source: He et al. 2016, Figure 2 and §3.3.

    Args:
        in_channels: Channels before the block.
        out_channels: Channels after it.
        stride: Stride of the first convolution and of the shortcut.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(),
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels)
            )

    def forward(self, maps: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch out_channels h w"]:
        """Maps after the block.

        Args:
            maps: Maps before it.
        """
        return (self.shortcut(maps) + self.residual(maps)).relu()


class ResNet18(nn.Module):
    """A convolution, max pooling, four stages of two residual blocks, and a mean over the places.

    With the stem "7x7", of stride 2 and with max pooling, this is the form for large images, 11,181,642 parameters for
    10 classes and 3 channels, as Horn et al. trained it: from 32 × 32 pixels the stem leaves 8 × 8 places, and the last
    stage one. With "3x3", of stride 1 and without pooling, it is the form for small images, 11,173,962 parameters, as
    Cordonnier et al. trained it: the stem leaves all places, the last stage 4 × 4, for 15 times the operations. Any
    size is taken.

    Batch normalisation follows every convolution, and there is no dropout (He et al. 2016, §3.4). Convolutions begin as
    N(0, 2 / fan_out) (He et al. 2015, the paper's initialisation), normalisations as the identity, the linear map as
    PyTorch's.

    Source: He et al. 2016, Table 1, 18 layers, with shortcuts of option B; He et al. 2015 (Delving deep into
    rectifiers), §2.2; Horn et al. 2021, Table 1; Cordonnier et al. 2020, §4.

    Args:
        image_size: Height and width in pixels, or one number for both.
        in_channels: Channels of the images.
        num_classes: Number of logits.
        width: Channels of the stem and the first stage; the others have 2, 4 and 8 times as many.
        resnet_stem: "7x7", of stride 2 and with max pooling, or "3x3".

    Raises:
        ValueError: A size that is not positive, or an unknown stem.
    """

    def __init__(
        self,
        image_size: int | tuple[int, int],
        in_channels: int,
        num_classes: int,
        *,
        width: int = 64,
        resnet_stem: str = "7x7",
    ) -> None:
        super().__init__()
        if resnet_stem not in STEMS:
            raise unknown_name("resnet_stem", resnet_stem, STEMS)
        check_sizes({"in_channels": in_channels, "num_classes": num_classes, "width": width})
        self.image_size = read_image_size(image_size)
        self.in_channels = in_channels
        is_large = resnet_stem == "7x7"
        side, stride = (7, 2) if is_large else (3, 1)
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, width, side, stride, padding=side // 2, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1) if is_large else nn.Identity(),
        )
        blocks: list[nn.Module] = []
        channels = width
        for multiple in STAGES:
            for place in range(BLOCKS_PER_STAGE):
                stride = 2 if place == 0 and multiple > 1 else 1
                blocks.append(ResidualBlock(channels, multiple * width, stride))
                channels = multiple * width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch classes"]:
        """Logits of images.

        Args:
            images: Images, shape (B, C, H, W).

        Raises:
            ValueError: Another number of channels or another size than the model was made for.
        """
        check_images(images, self.in_channels, self.image_size)
        return self.head(self.blocks(self.stem(images)).mean(dim=(2, 3)))
