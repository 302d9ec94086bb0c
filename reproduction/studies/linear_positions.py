"""Relative positions in linear attention: published methods and ours.

    python -m reproduction.studies.linear_positions --data-dir data --processes 2
    python -m reproduction.studies.linear_positions --times     # on a quiet machine
    python -m reproduction.studies.tables

The first command trains the models of linear_positions.yaml that are missing in the folder
linear_positions. The last one writes the table of README.md. Stochastic positions (Liutkus et al.
2021) and PermuteFormer (Chen 2021) are implemented here after their papers, on a torus with two
axes.
"""

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import cyclopts
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import softplus

from reproduction.benchmarks.measurement import interleaved_medians
from reproduction.studies.small_models import FIRST_TUNING_SEED, best_levels, fit, make_model
from reproduction.study import read_study, run_study
from reproduction.study.measure import accuracy
from reproduction.study.run_cell import load_dataset
from reproduction.study.study import Cell
from teka import Grid
from teka.files import write_json
from teka.functional.backends.attention_sums import LinearAttentionInputs, WeightedSums
from teka.functional.backends.costs import AttentionSizes, Cost, linear_cost
from teka.functional.backends.linear import attention_sums_without_positions
from teka.functional.kernels.content_kernel import DenseAttentionInputs
from teka.functional.positions import Positions
from teka.functional.relative.relative_kernel import RelativeKernel
from teka.nn import Attention, RandomFeatures
from teka.nn.relative import RelativeModule
from teka.testing import equivariance_error

SELECTION_SEEDS = range(3)
STUDY = read_study(Path(__file__).with_suffix(".yaml"))
RESULTS = Path(__file__).with_suffix("")
TIMES = RESULTS / "times.json"
SIDE = 14  # of the torus
CYCLE = 7  # of a permutation, a divisor of the side
DRAWS = 64  # of stochastic positions
WAVES = 10  # of stochastic positions for each feature, as in the authors' code


class LinearRelative(RelativeKernel):
    """Base class of relative kernels that are only evaluated by linear attention."""

    def num_weight_matrix_passes(self, num_axes: int) -> int:
        return 10**6

    def dense_attention(self, pairs: DenseAttentionInputs, positions: Positions) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Permutation(LinearRelative):
    """φ(q_i)ᵀ P^(x_i − x_j) φ(k_j) for 7 × 7 features, whose rows and columns are permuted.

    Source: Chen 2021 (PermuteFormer), eq. 6 with r = 1. On a torus, P to the power of the side is
    1.

    Args:
        powers: P^x for both axes and every x, of shape (2, SIDE, CYCLE).
    """

    name: ClassVar[str] = "permutation"
    powers: Tensor

    def estimate_costs(self, sizes: AttentionSizes, positions: Positions) -> dict[str, Cost]:
        return {"linear": linear_cost(sizes)}

    def weighted_sums(
        self, backend: str, tokens: LinearAttentionInputs, positions: Positions
    ) -> WeightedSums:
        device = tokens.query_features.device
        y, x = positions.coordinates(device).long().T % SIDE
        index = CYCLE * self.powers[0, y, :, None] + self.powers[1, x, None]
        index = index.flatten(1).expand_as(tokens.query_features)
        query_features = tokens.query_features.gather(-1, index)
        key_features = tokens.key_features.gather(-1, index)
        return attention_sums_without_positions(
            LinearAttentionInputs(tokens.query, query_features, key_features, tokens.value)
        )


class PermutationModule(RelativeModule):
    """Random cyclic permutations for both axes."""

    def __init__(self) -> None:
        super().__init__()
        powers = torch.empty(2, SIDE, CYCLE, dtype=torch.long)
        for axis in range(2):
            order = torch.randperm(CYCLE)
            for power in range(SIDE):
                powers[axis, power, order] = order.roll(-power)
        self.register_buffer("powers", powers)

    def forward(self) -> Permutation:
        return Permutation(self.get_buffer("powers"))


@dataclass(frozen=True, eq=False)
class Stochastic(LinearRelative):
    """Random queries Σ_d q_d Q_d(x) and keys Σ_d k_d K_d(x), whose products depend on offsets.

    E Q_d(x) K_d(y)ᵀ = Σ_w λ²_dw cos(ω_dw · (x − y) + θ_dw), where Q_d = Ω(ωx + θ) λ z,
    K_d = Ω(ωx) λ z, Ω are cosines and sines, and z ~ N(0, 1) / √R with R draws.

    Source: Liutkus et al. 2021 (SPE), §2.2 (sineSPE), with frequencies of two axes.
    """

    name: ClassVar[str] = "stochastic"
    equivariance: ClassVar[Any] = "in expectation"
    appends_features: ClassVar[bool] = True
    frequency: Tensor
    phase: Tensor
    gain: Tensor
    noise: Tensor

    @property
    def num_position_features(self) -> int:
        return self.noise.shape[-1] - self.frequency.shape[1]

    def softmax_inputs(
        self, query: Tensor, key: Tensor, positions: Positions, *, scale: float
    ) -> tuple[Tensor, Tensor]:
        frequency = positions.round_frequency_to_periods(self.frequency).to(query)
        coordinates = positions.coordinates(query.device).to(query)
        angle = torch.einsum("hdwa,la->hldw", frequency, coordinates)

        def encode(vectors: Tensor, angle: Tensor) -> Tensor:
            waves = torch.cat([angle.cos(), angle.sin()], -1) * self.gain.repeat(1, 1, 2)[:, None]
            encoded = torch.einsum("bhld,hldw,hdwr->bhlr", vectors, waves, self.noise.to(query))
            return scale**0.5 * encoded

        return encode(query, angle + self.phase[:, None]), encode(key, angle)


class StochasticModule(RelativeModule):
    """Learned waves for each feature of a head, and noise that is redrawn in training."""

    def __init__(self, heads: int, dim_head: int) -> None:
        super().__init__()
        self.frequency = Parameter(torch.rand(heads, dim_head, WAVES, 2) * math.pi)
        self.phase = Parameter(torch.zeros(heads, dim_head, WAVES))
        self.raw_gain = Parameter(torch.randn(heads, dim_head, WAVES))
        self.register_buffer("noise", torch.randn(heads, dim_head, 2 * WAVES, DRAWS) / DRAWS**0.5)

    @property
    def num_position_features(self) -> int:
        return DRAWS - self.frequency.shape[1]

    def forward(self) -> Stochastic:
        noise = self.get_buffer("noise")
        if self.training:
            noise.normal_(std=DRAWS**-0.5)
        gain = softplus(self.raw_gain)
        gain = gain / gain.square().sum(-1, keepdim=True).sqrt()
        return Stochastic(self.frequency, self.phase, gain, noise)


def replace_kernels(layer: Attention, candidate: str) -> None:
    """Replace the kernels of a layer by those of a candidate that teka does not have."""
    if candidate == "PermuteFormer, positive":
        layer.relative = PermutationModule()
    elif candidate == "stochastic positions, positive":
        layer.relative = StochasticModule(layer.heads, layer.dim_head)
        layer.kernel = RandomFeatures("positive", DRAWS, num_features=DRAWS)


def train_cell(
    cell: Cell, folder: Path, *, data_dir: str | None = None, command: str = ""
) -> dict[str, Any]:
    """Train and measure one model; with the tuning seed only on held-out images."""
    dataset = load_dataset(cell.run.replace(data_dir=data_dir).images)
    model = make_model(cell, dataset)
    for layer in list(model.modules()):
        if isinstance(layer, Attention):
            replace_kernels(layer, cell.labels["candidate"])
    result = fit(model, dataset, cell, command)
    if cell.run.seed < FIRST_TUNING_SEED:
        result["accuracy"] = accuracy(model, dataset.test)
        images = dataset.test.images[:100].double()
        error = equivariance_error(model.double(), images, [(0, 1), (3, -2), (7, 5), (-4, 4)])
        result["equivariance_error"] = error.maximum
    return result


def measure_times() -> dict[str, dict[str, float]]:
    """Return the milliseconds of each layer, forward and backward, in interleaved rounds."""
    torch.set_num_threads(1)
    times = {}
    for side in (28, 56):
        grid, tokens = Grid((side, side), periodic=True), torch.randn(2, side**2, 128)
        steps = {}
        for candidate, levels in STUDY.factors["candidate"].items():
            options: Any = dict(levels)
            position = options.pop("position")
            relative = None if position == "none" else position
            layer = Attention(128, 4, relative=relative, **options)
            replace_kernels(layer, candidate)
            steps[candidate] = partial(run_layer, layer, tokens, grid if layer.relative else None)
        medians = interleaved_medians(steps, seconds=1.0)
        times[str(side**2)] = {name: 1000 * seconds for name, seconds in medians.items()}
    return times


def run_layer(layer: Attention, tokens: Tensor, grid: Grid | None) -> None:
    """Run a layer forward and backward."""
    layer(tokens, grid).sum().backward()


def main(*, data_dir: str | None = None, processes: int = 1, times: bool = False) -> None:
    """Train the models that are missing, or measure the times of the layers."""
    if times:
        write_json(TIMES, measure_times())
        return
    train = partial(
        run_study,
        STUDY,
        RESULTS,
        train_cell=train_cell,
        data_dir=data_dir,
        processes=processes,
        command="python -m reproduction.studies.linear_positions",
    )
    train(only={"seed": [str(FIRST_TUNING_SEED)]})
    for levels in best_levels(STUDY, RESULTS):
        train(only=levels)


if __name__ == "__main__":
    cyclopts.run(main)
