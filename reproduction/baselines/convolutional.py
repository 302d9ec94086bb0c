"""Convolutional baselines: AlexNet for small images, VGG-16 and ResNet-18."""

from jaxtyping import Float
from torch import Tensor, nn

from reproduction.baselines.blocks import ImageClassifier, ImageSize
from teka.checks import check_name, check_sizes

# AlexNet: with a smaller side nothing is left for the last pooling: 29 → 8 → 4 → 2 → 1, 28 → 7 → 3 → 1.
SMALLEST_SIDE = 29
# VGG-16: channels of each convolution over `width`; a max pooling follows each group. Configuration D.
GROUPS = ((1, 1), (2, 2), (4, 4, 4), (8, 8, 8), (8, 8, 8))
POOLED_SIDE = 7
# ResNet-18: channels of each of the four stages over `width`; from the second on, a stage halves the sides.
STAGES = (1, 2, 4, 8)
BLOCKS_PER_STAGE = 2
STEMS = ("7x7", "3x3")


class AlexNet(ImageClassifier):
    """Five convolutions with ReLUs and max pooling, and one linear map of what is left.

    The form that Horn et al. 2021 trained, 2,472,266 parameters for 10 classes and 3 channels: the channels of
    torchvision's AlexNet, after Krizhevsky 2014 (64, 192, 384, 256, 256; kernels 11 × 11 of stride 4, 5 × 5, then 3 ×
    3), padding 5 in the first, pooling 2 × 2 without overlap, and no hidden linear layers. A 32 × 32 image becomes one
    place of 256 numbers, and the smallest side is 29.

    Dropout follows the ReLUs of the first, third and fifth convolution, as in the code of Horn et al.; Krizhevsky et
    al. 2012 (§4.2) have it in the linear layers that are left out. Initialisation is PyTorch's, U(±1/√fan_in), as in
    that code: N(0, 0.01²) with some biases of 1 (Krizhevsky et al. 2012, §5) is made for pixels from 0 to 255. There is
    no normalisation, as in that code, where Krizhevsky et al. 2012 (§3.3) normalise local responses.

    Source: Krizhevsky, Sutskever and Hinton 2012; Krizhevsky 2014 (One weird trick); Horn et al. 2021, Table 1, and
    their notebook CNN/CIFAR10.ipynb.

    >>> import torch, teka
    >>> model = reproduction.baselines.AlexNet(32, in_channels=3, num_classes=10)
    >>> sum(weights.numel() for weights in model.parameters()), model(torch.zeros(2, 3, 32, 32)).shape
    (2472266, torch.Size([2, 10]))

    Args:
        dropout: Probability of dropping a number.
    """

    def __init__(
        self, image_size: ImageSize, in_channels: int, num_classes: int, *, dropout: float = 0.5
    ) -> None:
        super().__init__(image_size, in_channels, num_classes, smallest=SMALLEST_SIDE)
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

    def logits(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch classes"]:
        return self.head(self.features(images).flatten(1))


class VGG16(ImageClassifier):
    """Thirteen 3 × 3 convolutions with ReLUs in five groups, then three linear layers.

    Configuration D without batch normalisation, 134,301,514 parameters for 10 classes and 3 channels. Average pooling
    brings what the convolutions leave to 7 × 7, whatever the image's size; what a 32 × 32 image, the smallest, leaves
    is one place, which is then repeated 49 times.

    Dropout follows both hidden linear layers (Simonyan and Zisserman 2015, §3.1). Initialisation is N(0, 0.01²) for the
    linear layers, as there, and N(0, 2 / fan_out) for the convolutions (He et al. 2015), with biases of 0, as in the
    code of Horn et al.: from 0.01 everywhere a net this deep may stall, so that the authors trained a smaller one first
    (§3.1). There is no normalisation, as in that paper.

    Source: Simonyan and Zisserman 2015, Table 1, column D; He et al. 2015 (Delving deep into rectifiers), §2.2; Horn et
    al. 2021, Table 1.

    >>> import torch, teka
    >>> model = reproduction.baselines.VGG16((32, 48), in_channels=1, num_classes=10, width=4, hidden=16)  # a sixteenth as wide
    >>> model(torch.zeros(2, 1, 32, 48)).shape
    torch.Size([2, 10])

    Args:
        width: Channels of the first convolutions; the others have 2, 4 and 8 times as many.
        hidden: Width of the two hidden linear layers.
        dropout: Probability of dropping a number in the linear layers.
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
        super().__init__(image_size, in_channels, num_classes, smallest=2 ** len(GROUPS))
        check_sizes({"width": width, "hidden": hidden})
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

    def logits(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch classes"]:
        return self.head(self.pool(self.features(images)).flatten(1))


class ResidualBlock(nn.Module):
    """relu(shortcut(x) + norm(conv(relu(norm(conv(x)))))), 3 × 3 convolutions (He et al. 2016, Figure 2, option B)."""

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
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )

    def forward(
        self, maps: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch out_channels h w"]:
        return (self.shortcut(maps) + self.residual(maps)).relu()


class ResNet18(ImageClassifier):
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

    >>> import torch, teka
    >>> images, sizes = torch.zeros(2, 3, 32, 32), {"image_size": 32, "in_channels": 3, "num_classes": 10, "width": 8}
    >>> large, small = (reproduction.baselines.ResNet18(**sizes, resnet_stem=stem) for stem in ("7x7", "3x3"))
    >>> large(images).shape, [tuple(model.blocks(model.stem(images)).shape[2:]) for model in (large, small)]
    (torch.Size([2, 10]), [(1, 1), (4, 4)])

    Args:
        width: Channels of the stem and the first stage; the others have 2, 4 and 8 times as many.
        resnet_stem: "7x7", of stride 2 and with max pooling, or "3x3".
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
        super().__init__(image_size, in_channels, num_classes)
        check_name("resnet_stem", resnet_stem, STEMS)
        check_sizes({"width": width})
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

    def logits(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch classes"]:
        return self.head(self.blocks(self.stem(images)).mean(dim=(2, 3)))
