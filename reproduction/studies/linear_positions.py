"""Study that compares linear attention with relative positions, from other papers and from teka.

    python -m reproduction.studies.linear_positions --data-dir data --processes 2
    python -m reproduction.studies.linear_positions --times     # on a quiet machine
    python -m reproduction.studies.tables

The first command trains the models of linear_positions.yaml that have no results in the folder
linear_positions yet. The second command times attention layers. The last command updates the table
in README.md. This module implements PermuteFormer (Chen 2021) and stochastic positions (Liutkus et
al. 2021) for square token grids whose opposite edges are neighbors.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import cyclopts
import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.functional import softplus

from reproduction.benchmarks.measurement import measure_median_times
from reproduction.studies.small_models import run_tuned_study, train_small_model
from reproduction.study import read_study
from reproduction.study.study import StudyModel
from teka import Grid
from teka.files import write_json
from teka.functional import FeatureKernel
from teka.functional.positions import Positions
from teka.nn import Attention, RandomFeatures
from teka.testing import equivariance_error

STUDY = read_study(Path(__file__).with_suffix(".yaml"))
RESULTS = Path(__file__).with_suffix("")
TIMES = RESULTS / "times.json"
SIDE = 14  # tokens along each axis
CYCLE = 7  # length of a permutation, a divisor of SIDE
DRAWS = 64  # random features of stochastic positions
WAVES = 10  # sinusoids per vector entry, as in the code of Liutkus et al.
FeatureMap = Callable[[Tensor, float], Tensor]  # from vectors and the attention scale to features


@dataclass(frozen=True)
class PositionDependentKernel(FeatureKernel):
    """Content kernel whose nonnegative features depend on each token and on its position.

    PermuteFormer and stochastic positions use this kernel instead of a relative kernel.

    Args:
        count: Number of features.
        map_query: Function that computes the features of queries.
        map_key: Function that computes the features of keys.
    """

    name: ClassVar[str] = "positioned_features"
    nonnegative = True
    count: int
    map_query: FeatureMap
    map_key: FeatureMap

    def num_features(self, dim: int) -> int:
        return self.count

    def query_features(self, query: Tensor, *, scale: float) -> Tensor:
        return self.map_query(query, scale)

    def key_features(self, key: Tensor, *, scale: float, key_mask: Any = None) -> Tensor:
        return self.map_key(key, scale)


class PermutedFeatures(nn.Module):
    """Random features of PermuteFormer, which are permuted according to each token's position.

    As a result, the inner product of a query and a key depends on their positions only through
    their offset. The 49 features of a token form a 7 × 7 matrix. For a token at row y and column x
    of the grid, the rows of this matrix are permuted y times by a random cycle of length 7, and its
    columns x times by another random cycle.

    Source: Chen 2021 (PermuteFormer), eq. 6 with r = 1.

    Args:
        random_features: Module that returns a kernel with 49 random features.
    """

    def __init__(self, random_features: nn.Module) -> None:
        super().__init__()
        self.random_features = random_features
        orders = torch.empty(2, SIDE, CYCLE, dtype=torch.long)
        for axis in range(2):
            cycle = torch.randperm(CYCLE)
            for position in range(SIDE):
                orders[axis, position, cycle] = cycle.roll(-position)
        self.register_buffer("orders", orders)

    def permute_features(self, features: Tensor) -> Tensor:
        """Permute the features of each token according to its position."""
        num_tokens = features.shape[-2]
        rows, columns = self.get_buffer("orders")
        tokens, side = torch.arange(num_tokens), math.isqrt(num_tokens)
        index = CYCLE * rows[tokens // side % SIDE, :, None] + columns[tokens % SIDE, None]
        return features.gather(-1, index.flatten(1).expand_as(features))

    def forward(self) -> PositionDependentKernel:
        kernel = self.random_features()
        return PositionDependentKernel(
            CYCLE**2,
            lambda query, scale: self.permute_features(kernel.query_features(query, scale=scale)),
            lambda key, scale: self.permute_features(kernel.key_features(key, scale=scale)),
        )


class StochasticPositions(nn.Module):
    """Random features of queries and keys that were multiplied by random sinusoids of positions.

    On average over the random draws, the inner product of a query and a key depends on their
    positions only through their offset. Entry d of a query at position x is multiplied by
    Ω(ω_d x + θ_d) λ_d z, and entry d of a key at position y by Ω(ω_d y) λ_d z:

    - Ω consists of cosines and sines.
    - The frequencies ω, phases θ and gains λ are learned.
    - z contains R draws from N(0, 1/R), which queries and keys share.

    The mean of the product over z is Σ_dw λ²_dw cos(ω_dw · (x − y) + θ_dw).

    Source: Liutkus et al. 2021 (SPE), §2.2 (sineSPE), with frequencies of two axes.
    """

    def __init__(self, heads: int, dim_head: int) -> None:
        super().__init__()
        self.frequency = Parameter(torch.rand(heads, dim_head, WAVES, 2) * math.pi)
        self.phase = Parameter(torch.zeros(heads, dim_head, WAVES))
        self.raw_gain = Parameter(torch.randn(heads, dim_head, WAVES))
        self.register_buffer("noise", torch.randn(heads, dim_head, 2 * WAVES, DRAWS) / DRAWS**0.5)
        self.random_features = RandomFeatures("positive", DRAWS, num_features=DRAWS)

    def multiply_by_sinusoids(self, vectors: Tensor, phase: Tensor) -> Tensor:
        """Encode the positions of vectors by multiplying the vectors by random sinusoids.

        Args:
            vectors: Queries or keys.
            phase: Phases θ of the sinusoids.
        """
        positions = Positions(Grid((math.isqrt(vectors.shape[-2]),) * 2, periodic=True))
        frequency = positions.round_frequency_to_periods(self.frequency).to(vectors)
        coordinates = positions.coordinates(vectors.device).to(vectors)
        angle = torch.einsum("hdwa,la->hldw", frequency, coordinates) + phase[:, None]
        gain = softplus(self.raw_gain)
        gain = gain / gain.norm(dim=-1, keepdim=True)
        waves = torch.cat([angle.cos(), angle.sin()], -1) * gain.repeat(1, 1, 2)[:, None]
        noise = self.get_buffer("noise").to(vectors)
        return torch.einsum("bhld,hldw,hdwr->bhlr", vectors, waves, noise) / DRAWS**0.25

    def forward(self) -> PositionDependentKernel:
        if self.training:
            self.get_buffer("noise").normal_(std=DRAWS**-0.5)
        kernel = self.random_features()
        key_phase = torch.zeros_like(self.phase)
        return PositionDependentKernel(
            DRAWS,
            lambda query, scale: kernel.query_features(
                self.multiply_by_sinusoids(query, self.phase), scale=1.0
            ),
            lambda key, scale: kernel.key_features(
                self.multiply_by_sinusoids(key, key_phase), scale=1.0
            ),
        )


def set_candidate_kernel(layer: Attention, candidate: str) -> None:
    """Set the kernel of an attention layer to that of PermuteFormer or stochastic positions.

    For all other candidates, the layer does not change, because teka provides their kernels.
    """
    if candidate == "PermuteFormer, positive":
        layer.kernel = PermutedFeatures(layer.kernel)
    elif candidate == "stochastic positions, positive":
        layer.kernel = StochasticPositions(layer.heads, layer.dim_head)
    else:
        return
    layer.backend = "linear"


def train_and_measure_equivariance(
    study_model: StudyModel, folder: Path, **options: Any
) -> dict[str, Any]:
    """Train one model of the study, and measure its accuracy and its equivariance error."""
    change_attention = partial(set_candidate_kernel, candidate=study_model.labels["candidate"])
    model, dataset, result = train_small_model(study_model, change_attention, **options)
    if "accuracy" in result:
        images = dataset.test.images[:100].double()
        error = equivariance_error(model.double(), images, [(0, 1), (3, -2), (7, 5), (-4, 4)])
        result["equivariance_error"] = error.maximum
    return result


def time_attention_layers() -> dict[str, dict[str, float]]:
    """Time a forward and backward pass of one attention layer for each candidate of the study.

    Returns:
        The median time in milliseconds, by number of tokens and candidate.
    """
    torch.set_num_threads(1)
    times = {}
    for side in (28, 56):
        grid, tokens = Grid((side, side), periodic=True), torch.randn(2, side**2, 128)
        steps = {}
        for candidate, levels in STUDY.factors["candidate"].items():
            options = dict(levels)
            position = options.pop("position")
            relative = None if position == "none" else position
            layer = Attention(128, 4, relative=relative, **options)
            set_candidate_kernel(layer, candidate)
            steps[candidate] = partial(run_layer, layer, tokens, grid if relative else None)
        medians = measure_median_times(steps, seconds=1.0)
        times[str(side**2)] = {name: 1000 * seconds for name, seconds in medians.items()}
    return times


def run_layer(layer: Attention, tokens: Tensor, grid: Grid | None) -> None:
    """Run a forward and backward pass of an attention layer."""
    layer(tokens, grid).sum().backward()


def main(*, data_dir: str | None = None, processes: int = 1, times: bool = False) -> None:
    """Train small models with relative positions from other papers and from teka.

    Only models that have no saved results yet are trained.

    Args:
        data_dir: Folder with the data sets.
        processes: Number of processes that train models.
        times: Do not train. Measure the time of the attention layers instead.
    """
    if times:
        write_json(TIMES, time_attention_layers())
    else:
        run_tuned_study(
            STUDY, RESULTS, train_and_measure_equivariance, data_dir=data_dir, processes=processes
        )


if __name__ == "__main__":
    cyclopts.run(main)
