"""Do the heads of a layer form the grid of a convolution's window?"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from teka.functional.relative import Relative
from teka.grid import Grid
from teka.models.encodings import make_encoding
from teka.training.heads.measure import Heads, look

LOCAL_WEIGHT = 0.5
CHANCE_DRAWS = 200


@dataclass(frozen=True)
class HeadGrid:
    """How near the heads of a layer are to the offsets of a window, each taken by a head of its own.

    A head's offset is the one with its largest weight. A head is local if that is at least ½: it looks at one place
    more than at all others together (Lemma 1 has a weight of 1). Counts of one layer are whole, means of several not.

    Args:
        heads: Number of heads.
        local: Number of local heads.
        distinct: Number of different offsets among the heads.
        window_3: Number of the 9 offsets of the 3 × 3 window about the query that are some head's.
        window_5: The same of the 25 of the 5 × 5 window.
        local_window_3: Number of the 9 that are some local head's.
        spread: Median over the heads of the attention's standard deviation in tokens, in its widest direction.
        distance: Median over the heads of the distance in tokens of the attention's mean from the query.
    """

    heads: int
    local: int | float
    distinct: int | float
    window_3: int | float
    window_5: int | float
    local_window_3: int | float
    spread: float
    distance: float


def head_grid(heads: Heads) -> HeadGrid:
    """How near the heads of one layer are to a grid.

    Args:
        heads: The heads of the layer.
    """
    (numbers,) = _by_draw(heads, 1)
    return HeadGrid(**numbers)


def chance_head_grid(encoding: str, *, heads: int, grid: Grid, embedding_dim: int) -> HeadGrid:
    """What heads have before training: the mean over 200 draws of a layer's initial parameters.

    The draws are the same every time, and torch's random state stays as it was.

    Args:
        encoding: A name of `teka.models.encodings.ENCODINGS`.
        heads: Number of heads of the layer.
        grid: The grid.
        embedding_dim: Size of the embeddings of "table".
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        drawn = [
            make_encoding(encoding, heads=heads, sides=grid.shape, embedding_dim=embedding_dim)()
            for _ in range(CHANCE_DRAWS)
        ]
        numbers = _by_draw(look(_joined(drawn), grid), CHANCE_DRAWS)
    means = {name: sum(one[name] for one in numbers) / CHANCE_DRAWS for name in numbers[0]}
    return HeadGrid(**{**means, "heads": heads})


def _joined(drawn: list[Relative]) -> Relative:
    """One kernel with the heads of all."""
    tensors = [name for name, value in vars(drawn[0]).items() if isinstance(value, Tensor)]
    joined = {name: torch.cat([getattr(one, name) for one in drawn]) for name in tensors}
    return dataclasses.replace(drawn[0], **joined)  # pyright: ignore[reportArgumentType]  # all kernels are dataclasses


def _by_draw(heads: Heads, draws: int) -> list[dict[str, Any]]:
    """The fields of `HeadGrid` for each of some layers of equally many heads."""
    offset, weight, mean = (tensor.unflatten(0, (draws, -1)) for tensor in (heads.offset, heads.weight, heads.mean))
    (down, _), (oblique, right) = heads.covariance.permute(1, 2, 0).unflatten(2, (draws, -1))
    # The larger eigenvalue in closed form: a factorisation would raise at NaN, and a record must not end a training.
    widest = ((down + right) / 2 + torch.hypot((down - right) / 2, oblique)).sqrt()
    local, away = weight >= LOCAL_WEIGHT, offset.abs().amax(dim=-1)
    numbers = {
        "local": local.sum(dim=1),
        "distinct": _count(offset, away >= 0),
        "window_3": _count(offset, away <= 1),
        "window_5": _count(offset, away <= 2),
        "local_window_3": _count(offset, local & (away <= 1)),
        "spread": widest.quantile(0.5, dim=1),
        "distance": mean.norm(dim=-1).quantile(0.5, dim=1),
    }
    size = offset.shape[1]
    return [{"heads": size, **{name: values[draw].item() for name, values in numbers.items()}} for draw in range(draws)]


def _count(offset: Int[Tensor, "draws heads 2"], chosen: Bool[Tensor, "draws heads"]) -> Int[Tensor, "draws"]:
    """How many different offsets some of the heads have."""
    among = int(offset.abs().max()) + 1
    code = (offset[..., 0] + among) * 2 * among + offset[..., 1] + among
    code = torch.where(chosen, code, -1).sort(dim=-1).values
    first = torch.ones_like(code[:, :1], dtype=torch.bool)
    is_new = torch.cat([first, code.diff(dim=-1) != 0], dim=-1)
    return (is_new & (code >= 0)).sum(dim=-1)
