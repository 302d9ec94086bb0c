"""Content kernels as modules: random features, whose projection is redrawn, and learned ones."""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn
from torch.nn import Parameter

from teka.checks import check_name, check_sizes, check_tensor_sizes
from teka.errors import wrong_type
from teka.functional import (
    PROJECTIONS,
    FeatureKernel,
    Kernel,
    default_num_features,
    draw_projection,
)
from teka.functional.kernels import LEARNED_KERNELS, RANDOM_KERNELS
from teka.functional.kernels.projection import MOST_DRAWS


class RandomFeatures(nn.Module):
    """A random-feature kernel whose projection lives in the state_dict.

    Draw number n of a module comes from a generator seeded with (seed, n), and seed and n are buffers too: a module
    loaded from a state_dict computes the same and will redraw the same. Nothing is redrawn in `forward`; call
    `redraw_projections(model)` on a schedule of your own, as `teka train` does every 1,000 steps (Horn et al. 2021).

    >>> import torch, teka
    >>> features, copy = (teka.nn.RandomFeatures("positive", 8, num_features=5) for _ in range(2))
    >>> _ = copy.load_state_dict(features.state_dict())
    >>> features.redraw()
    >>> copy.redraw()
    >>> torch.equal(features.projection, copy.projection), features().num_features(8)
    (True, 5)

    Args:
        kernel: A name of `teka.functional.kernels.RANDOM_KERNELS`.
        dim: Size of queries and keys.
        num_features: Number of draws m, ⌊d ln d⌋ by default.
        projection: A name of `teka.functional.PROJECTIONS`.
        generator: Source of the seed; torch's global one by default.
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
        """Draw the next projection, in place; on the device "meta" there are no numbers to draw."""
        if self.projection.is_meta:
            return
        generator = Generator().manual_seed(int(self.seed) * 1_000_003 + int(self.num_draws))
        drawn = draw_projection(
            self.num_features, self.dim, generator=generator, projection=self.projection_name
        )
        with torch.no_grad():
            self.projection.copy_(drawn)
            self.num_draws.add_(1)

    def forward(self) -> FeatureKernel:
        """The kernel with the present projection."""
        return RANDOM_KERNELS[self.kernel](self.projection)

    def extra_repr(self) -> str:
        return f"{self.kernel!r}, dim={self.dim}, num_features={self.num_features}, {self.projection_name}"


def redraw_projections(model: nn.Module) -> int:
    """Redraw every projection of a model, those of all `RandomFeatures` within it; returns how many there were."""
    modules = [module for module in model.modules() if isinstance(module, RandomFeatures)]
    for module in modules:
        module.redraw()
    return len(modules)


class LearnedFeatures(nn.Module):
    """A kernel with a feature map that is learned for each head, from the identity on (Zhang et al. 2024).

    >>> import torch, teka
    >>> features = teka.nn.LearnedFeatures("hedgehog", dim=8, heads=2)
    >>> layer = teka.nn.Attention(16, 2, kernel=features)
    >>> features.query_weight.shape, features().num_features(8)  # softmax of [Wx, −Wx]
    (torch.Size([2, 8, 8]), 16)
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
        initial = LEARNED_KERNELS[kernel].identity(dim, heads)
        for name in self.head_parameters:
            setattr(self, name, Parameter(getattr(initial, name)))

    def forward(self) -> FeatureKernel:
        """The kernel with the present parameters."""
        return LEARNED_KERNELS[self.kernel](*(getattr(self, name) for name in self.head_parameters))

    def extra_repr(self) -> str:
        return f"{self.kernel!r}, dim={self.dim}, heads={self.heads}"


ContentKernel = Kernel | RandomFeatures | LearnedFeatures
