"""Where the heads of a self-attention network look."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from teka.errors import wrong_value
from teka.functional.placement import Placement, Sites
from teka.functional.relative import GeneralizedQuadratic, Quadratic, Relative, StationaryRelative
from teka.grid import Grid
from teka.models import SelfAttentionNetwork


@dataclass(frozen=True)
class Heads:
    """Where heads look from a query in the middle of the grid, by position alone, all layers one after another.

    Offsets δ = key − query are counted in tokens, downwards and to the right. A Gaussian head has a center Δ_h and a
    precision Σ⁻¹, with log c = −½ (δ − Δ_h)ᵀ Σ⁻¹ (δ − Δ_h); those of a table are NaN. The others are of the head's
    attention p_j = c_j / Σ_j c_j over the tokens of the grid, whatever gave it, without its content.

    Args:
        layer: The layer of each head, from 0, shape (H,).
        center: Δ_h, shape (H, 2).
        precision: Σ⁻¹ in tokens^−2, shape (H, 2, 2).
        mean: Σ_j p_j δ_j, shape (H, 2).
        covariance: Σ_j p_j (δ_j − mean)(δ_j − mean)ᵀ in tokens², shape (H, 2, 2).
        offset: The offset with the largest weight, shape (H, 2).
        weight: That weight, shape (H,).
    """

    layer: Int[Tensor, "heads"]
    center: Float[Tensor, "heads 2"]
    precision: Float[Tensor, "heads 2 2"]
    mean: Float[Tensor, "heads 2"]
    covariance: Float[Tensor, "heads 2 2"]
    offset: Int[Tensor, "heads 2"]
    weight: Float[Tensor, "heads"]

    def of_layer(self, layer: int) -> "Heads":
        """The heads of one layer.

        Args:
            layer: The layer, from 0.
        """
        return Heads(**{name: tensor[self.layer == layer] for name, tensor in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """The fields by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def joined(cls, layers: Mapping[int, "Heads"]) -> "Heads":
        """The heads of several layers, one after another.

        Args:
            layers: Heads by their layer.
        """
        ordered = [
            dataclasses.replace(heads, layer=torch.full_like(heads.layer, layer)) for layer, heads in layers.items()
        ]
        return cls(
            **{
                field.name: torch.cat([getattr(one, field.name) for one in ordered])
                for field in dataclasses.fields(cls)
            }
        )


def middle_query(grid: Grid) -> tuple[int, int]:
    """Row and column of the token from which heads are measured, the one after the middle where sides are even.

    Args:
        grid: A grid of two axes.
    """
    height, width = grid.shape
    return height // 2, width // 2


def heads_of(model: SelfAttentionNetwork) -> Heads:
    """Where the heads of a network look with its present parameters, in float64 on the CPU.

    Args:
        model: The network; it has at least one block.
    """
    layers = {}
    for layer, attention in enumerate(model.attentions()):
        assert attention.relative is not None
        with torch.no_grad():
            layers[layer] = look(attention.relative(), model.grid)
    return Heads.joined(layers)


def look(relative: Relative, grid: Grid) -> Heads:
    """Where heads with a relative kernel look on a grid; their layer is 0.

    Args:
        relative: The kernel.
        grid: A grid of two axes.

    Raises:
        ValueError: A kernel that looks at the query, or a grid of another number of axes.
    """
    if grid.num_axes != 2:
        raise wrong_value("grid", grid, "a grid of two axes")
    if not isinstance(relative, StationaryRelative):
        raise wrong_value("relative", relative.name, "a kernel of the offset alone, such as 'quadratic'")
    sites = Sites(grid)
    spacing = torch.tensor(grid.spacing, dtype=torch.float64)
    row, column = middle_query(grid)
    query = torch.tensor([row * grid.shape[1] + column])
    offsets = Placement(sites, sites).offsets_like(spacing, query)[0]
    placed = relative.on(Placement(sites, sites))
    assert isinstance(placed, StationaryRelative)
    away = -offsets / spacing  # key less query, in tokens
    log_weights = placed.log_at(offsets.to(_device_of(relative))).detach()
    weights = torch.softmax(log_weights.double().cpu(), dim=-1)
    mean = weights @ away
    apart = away - mean[:, None]
    largest, place = weights.max(dim=-1)
    center, precision = _gaussian(relative, spacing, len(mean))
    return Heads(
        layer=torch.zeros(len(mean), dtype=torch.long),
        center=center,
        precision=precision,
        mean=mean,
        covariance=torch.einsum("hj,hja,hjb->hab", weights, apart, apart),
        offset=away[place].round().long(),
        weight=largest,
    )


def _device_of(relative: Relative) -> torch.device:
    tensors = (value for value in vars(relative).values() if isinstance(value, Tensor))
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


def _gaussian(
    relative: Relative, spacing: Float[Tensor, "2"], heads: int
) -> tuple[Float[Tensor, "heads 2"], Float[Tensor, "heads 2 2"]]:
    """Center and precision in tokens, NaN for what is no Gaussian."""
    match relative:
        case Quadratic():
            alpha = relative.precision.detach().double().cpu()
            precision = 2 * alpha[:, None, None] * torch.eye(2, dtype=torch.float64)
            center = relative.center
        case GeneralizedQuadratic():
            factor = relative.precision_factor.detach().double().cpu()
            precision = factor.transpose(1, 2) @ factor
            center = relative.center
        case _:
            nothing = torch.full((heads, 2), torch.nan, dtype=torch.float64)
            return nothing, nothing[..., None].expand(-1, -1, 2).clone()
    return center.detach().double().cpu() / spacing, precision * spacing[:, None] * spacing
