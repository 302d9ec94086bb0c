"""Random and learned feature maps for linear attention, as PyTorch modules."""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn
from torch.nn import Parameter

from teka.checks import check_name, check_sizes, check_tensor_sizes
from teka.errors import wrong_type
from teka.functional import (
    PROJECTIONS,
    ContentKernel,
    FeatureKernel,
    default_num_features,
    draw_projection,
)
from teka.functional.kernels import LEARNED_KERNELS, RANDOM_KERNELS
from teka.functional.kernels.random_projection import MOST_DRAWS


class RandomFeatures(nn.Module):
    """Random features for linear attention, with their random projection as a buffer.

    Random features turn queries and keys into vectors whose inner product approximates a kernel
    such as softmax. The projection stays the same until `redraw_projections(model)` is called, for
    example by `teka train` every 1,000 steps (Horn et al. 2021). The state dict also contains the
    seed and the number of draws, so that a loaded module draws the same projections as the saved
    one.

    >>> import torch, teka
    >>> features = teka.nn.RandomFeatures("positive", 8, num_features=5)
    >>> copy = teka.nn.RandomFeatures("positive", 8, num_features=5)
    >>> _ = copy.load_state_dict(features.state_dict())
    >>> features.redraw()
    >>> copy.redraw()
    >>> torch.equal(features.projection, copy.projection), features().num_features(8)
    (True, 5)

    Args:
        kernel: A name in `teka.functional.kernels.RANDOM_KERNELS`.
        dim: Size d of queries and keys.
        num_features: Number of random features m, by default ⌊d ln d⌋.
        projection: A name in `teka.functional.PROJECTIONS`.
        generator: Random generator of the seed, by default PyTorch's global generator.

    Raises:
        ValueError: A name is unknown, or a size is out of range.
    """

    projection: Float[Tensor, "features dim"]
    seed: Int[Tensor, ""]
    num_draws: Int[Tensor, ""]

    def __init__(
        self,
        kernel: str,
        dim: int,
        *,
        num_features: int | None = None,
        projection: str = "orthogonal",
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        check_name("kernel", kernel, RANDOM_KERNELS)
        check_name("projection", projection, PROJECTIONS)
        check_sizes({"dim": dim})
        check_sizes({"num_features": num_features}, or_none=True)
        if generator is not None and not isinstance(generator, Generator):
            raise wrong_type("generator", generator, "None or a torch.Generator")
        self.kernel, self.dim = kernel, dim
        self.num_features = default_num_features(dim) if num_features is None else num_features
        check_sizes({"num_features": self.num_features}, most=MOST_DRAWS)
        check_tensor_sizes({"num_features": self.num_features, "dim": dim})
        self.projection_name = projection
        self.register_buffer("projection", torch.empty(self.num_features, dim))
        device = None if generator is None else generator.device
        seed = torch.randint(2**31, (), generator=generator, device=device)
        self.register_buffer("seed", seed.to(self.projection.device))
        self.register_buffer("num_draws", torch.zeros((), dtype=torch.long))
        self.redraw()

    def redraw(self) -> None:
        """Draw the next projection, in place."""
        if self.projection.is_meta:
            return
        generator = Generator().manual_seed(int(self.seed) * 1_000_003 + int(self.num_draws))
        projection = draw_projection(
            self.num_features, self.dim, generator=generator, projection=self.projection_name
        )
        with torch.no_grad():
            self.projection.copy_(projection)
            self.num_draws.add_(1)

    def forward(self) -> FeatureKernel:
        """Return the kernel with the current projection."""
        return RANDOM_KERNELS[self.kernel](self.projection)

    def extra_repr(self) -> str:
        sizes = f"dim={self.dim}, num_features={self.num_features}"
        return f"{self.kernel!r}, {sizes}, {self.projection_name}"


def redraw_projections(model: nn.Module) -> int:
    """Draw new random projections in all `RandomFeatures` modules of a model.

    Call this function regularly during training, so that the model does not adapt to the errors of
    one projection.

    Source: Choromanski et al. 2021, §4.2.

    >>> import teka
    >>> model = teka.nn.TransformerBlock(16, 2, kernel="positive")
    >>> teka.nn.redraw_projections(model)
    1

    Args:
        model: Model, which changes in place.

    Returns:
        Number of redrawn modules.
    """
    modules = [module for module in model.modules() if isinstance(module, RandomFeatures)]
    for module in modules:
        module.redraw()
    return len(modules)


class LearnedFeatures(nn.Module):
    """Learned feature map for linear attention, with separate weights for each head.

    The attention weight of a query and a key before normalization is the inner product of their
    features. The weights of the feature map are initially identity matrices.

    Source: Zhang et al. 2024.

    >>> import torch, teka
    >>> features = teka.nn.LearnedFeatures("hedgehog", dim=8, heads=2)
    >>> layer = teka.nn.Attention(16, 2, kernel=features)
    >>> features.query_weight.shape, features().num_features(8)  # softmax of [Wx, −Wx]
    (torch.Size([2, 8, 8]), 16)

    Args:
        kernel: A name in `teka.functional.kernels.LEARNED_KERNELS`.
        dim: Size of queries and keys.
        heads: Number of heads.

    Raises:
        ValueError: The name is unknown, or a size is out of range.
    """

    head_parameters: ClassVar[tuple[str, ...]] = (
        "query_weight",
        "key_weight",
        "query_bias",
        "key_bias",
    )

    def __init__(self, kernel: str, dim: int, heads: int) -> None:
        super().__init__()
        check_name("kernel", kernel, LEARNED_KERNELS)
        check_sizes({"dim": dim, "heads": heads})
        check_tensor_sizes({"dim": dim, "heads": heads}, heads * dim**2)
        self.kernel, self.dim, self.heads = kernel, dim, heads
        initial = LEARNED_KERNELS[kernel].with_identity_weights(dim, heads)
        for name in self.head_parameters:
            setattr(self, name, Parameter(getattr(initial, name)))

    def forward(self) -> FeatureKernel:
        """Return the kernel with the current parameters."""
        return LEARNED_KERNELS[self.kernel](*(getattr(self, name) for name in self.head_parameters))

    def extra_repr(self) -> str:
        return f"{self.kernel!r}, dim={self.dim}, heads={self.heads}"


AnyContentKernel = ContentKernel | RandomFeatures | LearnedFeatures
