"""Where the heads of a self-attention network look, and whether those of a layer form the grid of a window."""

import contextlib
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from numpy.typing import NDArray
from torch import Tensor

from reproduction.baselines import SelfAttentionNetwork
from reproduction.baselines.self_attention_network import make_gaussian_or_table
from teka import functional
from teka.errors import wrong_value
from teka.functional import GeneralizedQuadratic, Quadratic, Relative
from teka.functional.positions import Positions
from teka.functional.relative.stationary import StationaryRelative
from teka.grid import Grid
from teka.nn import Attention
from teka.training.run import Run

LOCAL_WEIGHT = 0.5
CHANCE_DRAWS = 200
BATCH = 10


class Heads(NamedTuple):
    """Where heads look from a query in the middle of the grid, by position alone, all layers one after another.

    Offsets δ = key − query are in tokens, downwards and to the right. A Gaussian head has a center Δ_h and a precision
    Σ⁻¹, log c = −½ (δ − Δ_h)ᵀ Σ⁻¹ (δ − Δ_h), NaN of others; the rest is of its attention p_j = c_j / Σ_j c_j.
    """

    layer: Int[Tensor, "heads"]  # from 0
    center: Float[Tensor, "heads 2"]
    precision: Float[Tensor, "heads 2 2"]
    mean: Float[Tensor, "heads 2"]  # Σ_j p_j δ_j
    covariance: Float[Tensor, "heads 2 2"]  # Σ_j p_j (δ_j − mean)(δ_j − mean)ᵀ
    offset: Int[Tensor, "heads 2"]  # the one with the largest weight
    weight: Float[Tensor, "heads"]  # that weight

    def of_layer(self, layer: int) -> "Heads":
        """The heads of one layer, from 0."""
        return Heads(*(tensor[self.layer == layer] for tensor in self))

    @property
    def layers(self) -> list[int]:
        """Number of heads of each layer."""
        return self.layer.bincount().tolist()


def middle_query(grid: Grid) -> tuple[int, int]:
    """Row and column of the token from which heads are measured, the one after the middle where sides are even."""
    height, width = grid.shape
    return height // 2, width // 2


def heads_of(model: SelfAttentionNetwork) -> Heads:
    """Where the heads of a network look with its present parameters, in float64 on the CPU."""
    found = []
    for layer, attention in enumerate(model.attentions()):
        assert attention.relative is not None
        with torch.no_grad():
            heads = look(attention.relative(), model.grid)
        found.append(heads._replace(layer=torch.full_like(heads.layer, layer)))
    return Heads(*map(torch.cat, zip(*found, strict=True)))


def look(relative: Relative, grid: Grid) -> Heads:
    """Where heads with a relative kernel look on a grid of two axes; their layer is 0."""
    if grid.num_axes != 2:
        raise wrong_value("grid", grid, "a grid of two axes")
    if not isinstance(relative, StationaryRelative):
        raise wrong_value(
            "relative", relative.name, "a kernel of the offset alone, such as 'quadratic'"
        )
    positions = Positions(grid)
    spacing = torch.tensor(grid.spacing, dtype=torch.float64)
    row, column = middle_query(grid)
    query = torch.tensor([row * grid.shape[1] + column])
    offsets = positions.pairwise_offsets(spacing, query)[0]
    placed = relative.adapt_to_positions(positions)
    assert isinstance(placed, StationaryRelative)
    away = -offsets / spacing  # key less query, in tokens
    tensors = (value for value in vars(relative).values() if isinstance(value, Tensor))
    device = next((tensor.device for tensor in tensors), torch.device("cpu"))
    weights = torch.softmax(placed.log_at(offsets.to(device)).detach().double().cpu(), dim=-1)
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


def _gaussian(
    relative: Relative, spacing: Float[Tensor, "2"], heads: int
) -> tuple[Float[Tensor, "heads 2"], Float[Tensor, "heads 2 2"]]:
    """Center and precision in tokens, NaN for what is no Gaussian."""
    match relative:
        case Quadratic():
            alpha = relative.precision.detach().double().cpu()
            precision = 2 * alpha[:, None, None] * torch.eye(2, dtype=torch.float64)
        case GeneralizedQuadratic():
            factor = relative.precision_factor.detach().double().cpu()
            precision = factor.transpose(1, 2) @ factor
        case _:
            nothing = torch.full((heads, 2), torch.nan, dtype=torch.float64)
            return nothing, nothing[..., None].expand(-1, -1, 2).clone()
    return relative.center.detach().double().cpu() / spacing, precision * spacing[:, None] * spacing


@dataclass(frozen=True)
class HeadGrid:
    """How near the heads of a layer are to the offsets of a window, each taken by a head of its own.

    Numbers of heads or offsets, in means over draws not whole, and two medians over the heads in tokens. A head's
    offset is the one with its largest weight; a head is local if that is at least ½ (Lemma 1 has a weight of 1).
    """

    heads: int
    local: int | float
    distinct: int | float  # different offsets
    window_3: int | float  # offsets of the 3 × 3 window about the query that are some head's, of 9
    window_5: int | float  # and of the 5 × 5 window, of 25
    local_window_3: int | float  # offsets of the 3 × 3 window that are some local head's
    spread: float  # the attention's standard deviation in its widest direction
    distance: float  # of the attention's mean from the query


def head_grids(heads: Heads) -> list[HeadGrid]:
    """How near the heads of each layer are to a grid."""
    grids = []
    for layer, count in enumerate(heads.layers):
        numbers = _by_draw(heads.of_layer(layer), 1)
        grids.append(HeadGrid(count, **{name: values.item() for name, values in numbers.items()}))
    return grids


def chance_head_grids(run: Run, layers: Sequence[int], grid: Grid) -> list[HeadGrid]:
    """What a run's heads have before training, by layer: means over 200 draws of initial parameters, ever the same."""
    by_count = {count: _chance(run, count, grid) for count in set(layers)}
    return [by_count[count] for count in layers]


def _chance(run: Run, heads: int, grid: Grid) -> HeadGrid:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        options = {"heads": heads, "sides": grid.shape, "embedding_dim": run.dim}
        drawn = [make_gaussian_or_table(run.position, **options)() for _ in range(CHANCE_DRAWS)]
        # One kernel with the heads of all, which are looked at together.
        tensors = [name for name, value in vars(drawn[0]).items() if isinstance(value, Tensor)]
        joined: Any = dataclasses.replace(
            drawn[0],  # pyright: ignore[reportArgumentType]  # all kernels are dataclasses
            **{name: torch.cat([getattr(one, name) for one in drawn]) for name in tensors},
        )
        numbers = _by_draw(look(joined, grid), CHANCE_DRAWS)
    return HeadGrid(
        heads, **{name: values.double().mean().item() for name, values in numbers.items()}
    )


def _by_draw(heads: Heads, draws: int) -> dict[str, Shaped[Tensor, "draws"]]:
    """The other fields of `HeadGrid` for each of some layers of equally many heads."""
    offset, weight, mean = (
        tensor.unflatten(0, (draws, -1)) for tensor in (heads.offset, heads.weight, heads.mean)
    )
    (down, _), (oblique, right) = heads.covariance.permute(1, 2, 0).unflatten(2, (draws, -1))
    # The larger eigenvalue in closed form: a factorisation would raise at NaN, and a record must not end a training.
    widest = ((down + right) / 2 + torch.hypot((down - right) / 2, oblique)).sqrt()
    local, away = weight >= LOCAL_WEIGHT, offset.abs().amax(dim=-1)
    return {
        "local": local.sum(dim=1),
        "distinct": _count(offset, away >= 0),
        "window_3": _count(offset, away <= 1),
        "window_5": _count(offset, away <= 2),
        "local_window_3": _count(offset, local & (away <= 1)),
        "spread": widest.quantile(0.5, dim=1),
        "distance": mean.norm(dim=-1).quantile(0.5, dim=1),
    }


def _count(
    offset: Int[Tensor, "draws heads 2"], chosen: Bool[Tensor, "draws heads"]
) -> Int[Tensor, "draws"]:
    """How many different offsets some of the heads have."""
    return torch.tensor(
        [len(one[these].unique(dim=0)) for one, these in zip(offset, chosen, strict=True)]
    )


def attention_maps(
    model: SelfAttentionNetwork,
    images: Float[Tensor, "batch channels height width"],
    query: tuple[int, int],
) -> tuple[NDArray, ...]:
    """The weights that a token (row, column) gives to all tokens, for each layer (heads, rows, columns), of sum 1 each.

    Where content enters they are the mean over the images; without it one is looked at.
    """
    sides = model.grid.shape
    if len(query) != 2 or not all(
        0 <= place < side for place, side in zip(query, sides, strict=True)
    ):
        expected = (
            f"a row from 0 to {sides[0] - 1} and a column from 0 to {sides[1] - 1}, in tokens"
        )
        raise wrong_value("query", query, expected)
    if not len(images):
        raise wrong_value("images", 0, "one image or more")
    layers = model.attentions()
    if all(layer.query is None for layer in layers):
        images = images[:1]
    sums: dict[Attention, Tensor] = {}

    def add(layer: Attention, inputs: tuple) -> None:
        weights = attention_weights(layer, inputs[0], model.grid)[
            :, :, query[0] * sides[1] + query[1]
        ]
        sums[layer] = sums.get(layer, 0) + weights.double().sum(dim=0)

    with torch.inference_mode(), contextlib.ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(layer.register_forward_pre_hook(add))
        for batch in images.split(BATCH):
            model(batch)
    return tuple((sums[layer] / len(images)).unflatten(-1, sides).numpy() for layer in layers)


def attention_weights(
    layer: Attention, tokens: Float[Tensor, "batch tokens dim"], grid: Grid
) -> Float[Tensor, "batch heads tokens tokens"]:
    """The matrix of weights of every head: what attention makes of values that tell the tokens apart."""
    num_tokens = tokens.shape[1]
    query, key, value = layer.project(tokens)
    each = torch.eye(num_tokens, dtype=value.dtype).expand(*value.shape[:2], -1, -1)
    (group,) = layer.head_groups()
    query, key, _ = group.select(query, key, value, num_tokens)
    return functional.attention(
        query, key, each, kernel=group.kernel, relative=group.relative, grid=grid, backend="dense"
    )
