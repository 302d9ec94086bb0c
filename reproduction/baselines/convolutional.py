"""Convolutional baselines: AlexNet for small images, VGG-16 and ResNet-18.

Unlike torchvision's models, AlexNet has a single linear layer and smaller pooling windows, and
ResNet-18 has an option for small images.
"""

import math

from jaxtyping import Float
from torch import Tensor, nn

from reproduction.baselines.blocks import ImageClassifier, Images, ImageSize, Logits
from teka.checks import check_name

# Output channels of the convolutions of VGG-16, configuration D, in multiples of `width`. A max
# pooling follows each group.
VGG_GROUPS = ((1, 1), (2, 2), (4, 4, 4), (8, 8, 8), (8, 8, 8))
VGG_POOLED_SIDE = 7
# Output channels, in multiples of `width`, and stride of the eight blocks of ResNet-18.
RESNET_BLOCKS = ((1, 1), (1, 1), (2, 2), (2, 1), (4, 2), (4, 1), (8, 2), (8, 1))


def make_convolution(
    in_channels: int,
    out_channels: int,
    kernel_size: int = 3,
    stride: int = 1,
    *,
    is_normalized: bool = False,
) -> list[nn.Module]:
    """Create a convolution followed by a batch norm or, if `is_normalized` is false, by a ReLU."""
    sizes = in_channels, out_channels, kernel_size, stride, kernel_size // 2
    if is_normalized:
        return [nn.Conv2d(*sizes, bias=False), nn.BatchNorm2d(out_channels)]
    return [nn.Conv2d(*sizes), nn.ReLU()]


class AlexNet(ImageClassifier):
    """AlexNet for small images, with five convolutions and one linear layer.

    Horn et al. 2021 trained this variant. It has 2,472,266 parameters for 10 classes and 3
    channels. Images of 32 × 32 pixels are reduced to 1 × 1 features. The network differs from
    torchvision's AlexNet (Krizhevsky 2014) in three ways:

    - The padding of the first convolution is 5.
    - The max-pooling windows do not overlap.
    - There are no hidden linear layers.

    Three other details follow the code of Horn et al. and differ from Krizhevsky et al. 2012:

    - Dropout follows the ReLUs of the first, third and fifth convolution, instead of the hidden
      linear layers (§4.2).
    - The initial weights are PyTorch's, instead of N(0, 0.01²) with some biases of 1 (§5), which
      suits pixels from 0 to 255.
    - There is no local response normalization (§3.3).

    Source: Krizhevsky, Sutskever and Hinton 2012; Krizhevsky 2014 (One weird trick); Horn et al.
    2021, Table 1, and their notebook CNN/CIFAR10.ipynb.

    >>> import torch
    >>> from reproduction.baselines import AlexNet
    >>> model = AlexNet(32, in_channels=3, num_classes=10)
    >>> model(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])

    Args:
        image_size: Height and width of the images, or one number for both; at least 29.
        in_channels: Number of channels of the images.
        num_classes: Number of logits.
        dropout: Dropout rate.
    """

    def __init__(
        self, image_size: ImageSize, in_channels: int, num_classes: int, *, dropout: float = 0.5
    ) -> None:
        # The features of a smaller image are empty: 29 → 8 → 4 → 2 → 1, but 28 → 7 → 3 → 1 → 0.
        super().__init__(image_size, in_channels, num_classes, smallest=29)
        drop, pool = nn.Dropout(dropout), nn.MaxPool2d(2)
        self.features = nn.Sequential(
            *make_convolution(in_channels, 64, 11, stride=4),
            drop,
            pool,
            *make_convolution(64, 192, 5),
            pool,
            *make_convolution(192, 384),
            drop,
            *make_convolution(384, 256),
            *make_convolution(256, 256),
            drop,
            pool,
        )
        # The first convolution leaves ⌈side / 4⌉ positions, and three poolings an eighth of them.
        num_positions = math.prod((side + 3) // 4 // 8 for side in self.image_size)
        self.head = nn.Linear(256 * num_positions, num_classes)

    def logits(self, images: Images) -> Logits:
        return self.head(self.features(images).flatten(1))


class VGG16(ImageClassifier):
    """VGG-16, with thirteen 3 × 3 convolutions and three linear layers.

    This is configuration D of the paper, without batch normalization. It has 134,301,514 parameters
    for 10 classes and 3 channels. Average pooling reduces the features to 7 × 7 for any image size.

    - Dropout follows both hidden linear layers (Simonyan and Zisserman 2015, §3.1).
    - Weights of linear layers are initialized from N(0, 0.01²), as in that paper. Weights of
      convolutions are initialized from N(0, 2 / fan_out) (He et al. 2015) and biases as 0, as in
      the code of Horn et al. With N(0, 0.01²) everywhere, such a deep network may not train.

    Source: Simonyan and Zisserman 2015, Table 1, column D; He et al. 2015 (Delving deep into
    rectifiers), §2.2; Horn et al. 2021, Table 1.

    >>> import torch
    >>> from reproduction.baselines import VGG16
    >>> model = VGG16((32, 48), in_channels=1, num_classes=10, width=4, hidden=16)
    >>> model(torch.zeros(2, 1, 32, 48)).shape
    torch.Size([2, 10])

    Args:
        image_size: Height and width of the images, or one number for both; at least 32.
        in_channels: Number of channels of the images.
        num_classes: Number of logits.
        width: Channels of the first convolutions. The others have 2, 4 and 8 times as many.
        hidden: Width of the two hidden linear layers.
        dropout: Dropout rate of the linear layers.
    """

    def __init__(
        self,
        image_size: ImageSize,
        in_channels: int,
        num_classes: int,
        *,
        width: int = 64,
        hidden: int = 4096,
        dropout: float = 0.5,
    ) -> None:
        super().__init__(
            image_size, in_channels, num_classes, smallest=32, width=width, hidden=hidden
        )
        layers: list[nn.Module] = []
        channels = in_channels
        for group in VGG_GROUPS:
            for multiple in group:
                layers += make_convolution(channels, multiple * width)
                channels = multiple * width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(VGG_POOLED_SIDE)
        self.head = nn.Sequential(
            nn.Linear(channels * VGG_POOLED_SIDE**2, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, num_classes),
        )
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.ndim == 4:
                nn.init.kaiming_normal_(parameter, mode="fan_out", nonlinearity="relu")
            else:
                nn.init.normal_(parameter, std=0.01)

    def logits(self, images: Images) -> Logits:
        return self.head(self.pool(self.features(images)).flatten(1))


class ResidualBlock(nn.Module):
    """A residual block with two 3 × 3 convolutions, each followed by a batch norm.

    The shortcut is a 1 × 1 convolution if the shape of the features changes, and otherwise the
    identity.

    Source: He et al. 2016, Figure 2, with shortcuts of option B.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *make_convolution(in_channels, out_channels, stride=stride, is_normalized=True),
            nn.ReLU(),
            *make_convolution(out_channels, out_channels, is_normalized=True),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or in_channels != out_channels:
            self.shortcut.extend(
                make_convolution(in_channels, out_channels, 1, stride, is_normalized=True)
            )

    def forward(self, maps: Images) -> Float[Tensor, "batch out_channels h w"]:
        return (self.shortcut(maps) + self.residual(maps)).relu()


class ResNet18(ImageClassifier):
    """ResNet-18, with an initial convolution, eight residual blocks and a linear layer.

    There are two versions of the initial convolution:

    - `resnet_stem="7x7"` is for large images. It has stride 2, and a max pooling follows. Horn et
      al. trained this version, with 11,181,642 parameters for 10 classes and 3 channels.
    - `resnet_stem="3x3"` is for small images. It has stride 1, and no pooling follows. Cordonnier
      et al. trained this version, with 11,173,962 parameters. It needs 15 times as many operations
      as the other version.

    Batch normalization follows every convolution, and there is no dropout (He et al. 2016, §3.4).
    Weights of convolutions are initialized from N(0, 2 / fan_out) (He et al. 2015).

    Source: He et al. 2016, Table 1, 18 layers; He et al. 2015 (Delving deep into rectifiers), §2.2;
    Horn et al. 2021, Table 1; Cordonnier et al. 2020, §4.

    >>> import torch
    >>> from reproduction.baselines import ResNet18
    >>> model = ResNet18(32, in_channels=3, num_classes=10, width=8, resnet_stem="3x3")
    >>> model(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])

    Args:
        image_size: Height and width of the images, or one number for both.
        in_channels: Number of channels of the images.
        num_classes: Number of logits.
        width: Channels of the stem and the first stage. The others have 2, 4 and 8 times as many.
        resnet_stem: "7x7" or "3x3".
    """

    def __init__(
        self,
        image_size: ImageSize,
        in_channels: int,
        num_classes: int,
        *,
        width: int = 64,
        resnet_stem: str = "7x7",
    ) -> None:
        super().__init__(image_size, in_channels, num_classes, width=width)
        check_name("resnet_stem", resnet_stem, ("7x7", "3x3"))
        kernel_size, stride = (7, 2) if resnet_stem == "7x7" else (3, 1)
        stem = make_convolution(in_channels, width, kernel_size, stride, is_normalized=True)
        self.stem = nn.Sequential(*stem, nn.ReLU())
        if resnet_stem == "7x7":
            self.stem.append(nn.MaxPool2d(3, stride=2, padding=1))
        self.blocks = nn.Sequential()
        channels = width
        for multiple, stride in RESNET_BLOCKS:
            self.blocks.append(ResidualBlock(channels, multiple * width, stride))
            channels = multiple * width
        self.head = nn.Linear(channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def logits(self, images: Images) -> Logits:
        return self.head(self.blocks(self.stem(images)).mean(dim=(2, 3)))
