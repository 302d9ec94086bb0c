"""Convolutional network for images, with linear attention at its lower resolutions."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from teka.checks import check_image_size, check_sizes, check_tensor
from teka.errors import wrong_value
from teka.grid import Grid
from teka.nn import PolyphaseDownsample, TransformerBlock

WHITENING_FLOOR = 5e-4
LOGIT_SCALE = 1 / 9


class WhiteningConv2d(nn.Conv2d):
    """Convolution with fixed weights that decorrelates the 2 × 2 patches of an image (whitening).

    Half of the filters are the eigenvectors of the covariance matrix of patches, divided by the
    square roots of their eigenvalues. The other half are the negatives of these filters. The
    weights are random until the method `fit` computes them from training images. The padding is
    circular.

    Source: Jordan 2024 (arXiv 2404.00498), section 3.1.
    """

    def __init__(self, in_channels: int) -> None:
        super().__init__(in_channels, 8 * in_channels, 2)
        self.requires_grad_(False)

    def fit(self, images: Float[Tensor, "images channels height width"]) -> None:
        """Compute the filters from the 2 × 2 patches of training images."""
        patches = images.unfold(2, 2, 1).unfold(3, 2, 1).movedim(1, 3).flatten(3).flatten(0, 2)
        patches = patches.double()
        eigenvalues, eigenvectors = torch.linalg.eigh(patches.T.cov())
        directions = (eigenvectors / (eigenvalues + WHITENING_FLOOR).sqrt()).T
        weight = torch.cat([directions, -directions])
        self.weight.copy_(weight.view_as(self.weight))
        assert self.bias is not None
        self.bias.copy_(-weight @ patches.mean(dim=0))

    def forward(
        self, input: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch filters height width"]:
        return super().forward(pad(input, (0, 1, 0, 1), mode="circular"))


class CircularConv2d(nn.Conv2d):
    """3 × 3 convolution with circular padding that initially copies its inputs to its outputs.

    The initial weights of additional output channels are random.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, 3, bias=False)
        nn.init.dirac_(self.weight.data[:in_channels])

    def forward(
        self, input: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch filters height width"]:
        # On a CPU, concatenation is faster than circular padding.
        rows = torch.cat([input[:, :, -1:], input, input[:, :, :1]], dim=2)
        return super().forward(torch.cat([rows[..., -1:], rows, rows[..., :1]], dim=3))


def make_unscaled_batch_norm(width: int) -> nn.BatchNorm2d:
    """Create a batch normalization whose scale is fixed to 1."""
    norm = nn.BatchNorm2d(width)
    norm.weight.requires_grad_(False)
    return norm


def circular_max_pool(
    cells: Float[Tensor, "batch channels height width"],
) -> Float[Tensor, "batch channels height width"]:
    """Return the maximum of each 2 × 2 window of pixels, with stride 1 and circular padding."""
    # Two maxima are several times faster than max_pool2d in bfloat16 on a CPU.
    rows = torch.maximum(cells, cells.roll(-1, 2))
    return torch.maximum(rows, rows.roll(-1, 3))


class ConvStage(nn.Module):
    """Stage of a `ConvPerformer`, which halves the height and width of an image.

    It consists of a convolution, max pooling with stride 1, polyphase downsampling by 2, a second
    convolution, and optionally a transformer block. Batch normalization without a scale and a GELU
    follow each convolution. The stage is equivariant to every circular shift by whole pixels.

    Args:
        in_channels: Number of channels of the inputs.
        width: Number of channels of the outputs.
        heads: Number of heads of a transformer block with the default attention. 0 for no block.
        mlp_ratio: Width of the hidden layer of its MLP divided by `width`.
    """

    def __init__(self, in_channels: int, width: int, heads: int, mlp_ratio: float) -> None:
        super().__init__()
        self.first = CircularConv2d(in_channels, width)
        self.second = CircularConv2d(width, width)
        self.downsample = PolyphaseDownsample(2)
        self.first_norm = make_unscaled_batch_norm(width)
        self.second_norm = make_unscaled_batch_norm(width)
        self.activation = nn.GELU()
        self.block = None
        if heads:
            self.block = TransformerBlock(
                width, heads, mlp_ratio=mlp_ratio, relative="rotary", num_axes=2
            )

    def forward(
        self, cells: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch out_channels coarse_height coarse_width"]:
        pooled = circular_max_pool(self.first(cells))
        cells = self.activation(self.first_norm(self.downsample(pooled)))
        cells = self.activation(self.second_norm(self.second(cells)))
        if self.block is None:
            return cells
        grid = Grid(cells.shape[2:], periodic=True)
        return grid.unflatten(self.block(grid.flatten(cells), grid))


class ConvPerformer(nn.Module):
    """Convolutional network for images, with linear attention at its lower resolutions.

    First, a fixed convolution decorrelates the 2 × 2 patches of the image (whitening). Each stage
    then halves the height and width, and may end with a transformer block. Finally, a linear layer
    computes the logits from the maximum of each channel over all positions. The model is exactly
    invariant to every circular shift by whole pixels (docs/maths/polyphase.md).

    Source: the convolutions follow Jordan 2024 (arXiv 2404.00498); polyphase sampling: Chaman &
    Dokmanić 2021.

    >>> import torch, teka
    >>> model = teka.models.ConvPerformer((8, 16), 3, 10).eval()
    >>> image = torch.rand(1, 3, 8, 16)
    >>> torch.allclose(model(image.roll((3, 5), (2, 3))), model(image), atol=1e-5)
    True

    Args:
        image_size: Height and width of the images, or one number for both. Each side is a
            multiple of 2 to the power of the number of stages.
        in_channels: Number of channels of the images.
        num_classes: Number of logits.
        widths: Number of channels of each stage.
        attention_heads: Number of attention heads at the end of each stage. 0 for no attention.
        mlp_ratio: Width of the hidden layer of the MLPs divided by the width of the stage.

    Raises:
        ValueError: A size is out of range, or the sizes do not fit together.
    """

    def __init__(
        self,
        image_size: int | Sequence[int],
        in_channels: int,
        num_classes: int,
        *,
        widths: tuple[int, ...] = (64, 256, 256),
        attention_heads: tuple[int, ...] = (0, 8, 8),
        mlp_ratio: float = 2.0,
    ) -> None:
        super().__init__()
        self.image_size = check_image_size("image_size", image_size)
        check_sizes({"in_channels": in_channels, "num_classes": num_classes})
        for width in widths:
            check_sizes({"widths": width})
        if len(attention_heads) != len(widths) or not widths:
            expected = f"one number for each of {len(widths)} widths"
            raise wrong_value("attention_heads", attention_heads, expected)
        self.stride = 2 ** len(widths)
        if any(side % self.stride for side in self.image_size):
            expected = f"sides that are multiples of the stride = {self.stride}"
            raise wrong_value("image_size", image_size, expected)
        self.whitening = WhiteningConv2d(in_channels)
        channels = [self.whitening.out_channels, *widths]
        self.stages = nn.Sequential(
            *(
                ConvStage(*sizes, mlp_ratio)
                for sizes in zip(channels[:-1], widths, attention_heads, strict=True)
            )
        )
        self.head = nn.Linear(widths[-1], num_classes, bias=False)

    def forward(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch classes"]:
        """Return the class logits of each image.

        Raises:
            ValueError: The images have another size or another number of channels.
        """
        check_tensor("images", images, "batch", self.whitening.in_channels, *self.image_size)
        cells = self.stages(nn.functional.gelu(self.whitening(images)))
        # The gradient of amax compares cells with their maximum. In a compiled model in bfloat16,
        # the two may be rounded differently, and the gradient would be NaN.
        return LOGIT_SCALE * self.head(cells.flatten(2).max(dim=2).values)
