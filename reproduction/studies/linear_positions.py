r"""Relative positions in linear attention as others have them: accuracy, error of equivariance, time.

    python reproduction/studies/linear_positions.py --data-dir data --processes 2
    python reproduction/studies/linear_positions.py --time     # on a quiet machine

trains what is missing and writes linear_positions.json beside itself; docs/linear_positions.md has the tables. Luo et
al. 2021 and Qin et al. 2022 are kernels of teka; stochastic positions (Liutkus et al. 2021) and PermuteFormer (Chen
2021) are written here after their papers, on a torus of two axes. Every row is trained at three rates on a tuning seed,
which is not used again; the rate of least validation loss is its rate on that data set.
"""

import argparse
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from bounded_rotary import logits_of
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.functional import cross_entropy, softplus

from teka import Grid
from teka.data import load
from teka.files import write_json
from teka.functional.backends.attention_sums import FeatureInputs, WeightedSums
from teka.functional.backends.costs import Cost
from teka.functional.backends.feature_sums import position_free_sums
from teka.functional.backends.linear import AttentionSizes, linear_cost
from teka.functional.kernels.content_kernel import DenseInputs, Kernel
from teka.functional.positions import Positions
from teka.functional.relative.relative_kernel import Relative
from teka.models import Performer
from teka.nn import Attention, RandomFeatures
from teka.nn.relative import RelativeModule
from teka.testing import equivariance_error

OUT = Path(__file__).with_suffix(".json")
SIDE, CYCLE, DRAWS = (
    14,
    7,
    64,
)  # of the torus; of a permutation, which divides it; of stochastic positions
DATA = ("mnist", "fashion-mnist")
RATES, TUNING_SEED, SEEDS = (0.002, 0.004, 0.008), 100, (0, 1, 2)
EPOCHS, BATCH = 3, 32


class Permutation(Relative):
    """φ(q_i)ᵀ P^(x_i − x_j) φ(k_j): features on a square of 7 × 7, permuted in rows by x and in columns by y.

    Source: Chen 2021 (PermuteFormer), equation 6 with r = 1; on a torus P to the power of a side must be 1.
    """

    name: ClassVar[str] = "permutation"

    def __init__(self, powers: Tensor) -> None:
        self.powers = powers  # (axes, side, CYCLE): where features of cell x come from

    def check_compatibility(self, *, heads: int, dim: int, num_axes: int, kernel: Kernel) -> None:
        assert num_axes == 2

    def num_dense_passes(self, num_axes: int) -> int:
        return 3

    def permuted(self, features: Tensor, grid: Grid) -> Tensor:
        """The features of every cell in its order."""
        square = features.unflatten(-1, (CYCLE, CYCLE)).unflatten(2, grid.shape)
        rows, columns = (
            one[torch.arange(side) % SIDE]
            for one, side in zip(self.powers, grid.shape, strict=True)
        )
        rows = rows[:, None, :, None].expand(*square.shape[2:])
        columns = columns[None, :, None, :].expand(*square.shape[2:])
        return (
            square.gather(4, rows.expand_as(square))
            .gather(5, columns.expand_as(square))
            .flatten(4)
            .flatten(2, 3)
        )

    def dense_attention(self, pairs: DenseInputs, positions: Positions) -> Tensor:
        query, key, _ = pairs.vectors()
        assert positions.grid is not None
        weights = self.permuted(query, positions.grid) @ self.permuted(key, positions.grid).mT
        return (weights @ pairs.value) / weights.sum(-1, keepdim=True)

    def estimate_costs(self, sizes: AttentionSizes, positions: Positions) -> dict[str, Cost]:
        return {"linear": linear_cost(sizes)}

    def weighted_sums(
        self, backend: str, tokens: FeatureInputs, positions: Positions
    ) -> WeightedSums:
        assert positions.grid is not None
        features = (
            self.permuted(one, positions.grid)
            for one in (tokens.query_features, tokens.key_features)
        )
        query_features, key_features = features
        return position_free_sums(
            FeatureInputs(tokens.query, query_features, key_features, tokens.value)
        )


class Permutations(RelativeModule):
    """A random cycle of 7 for each axis."""

    def __init__(self) -> None:
        super().__init__()
        powers = []
        for _ in range(2):
            order = torch.randperm(CYCLE)
            cycle = torch.empty(CYCLE, dtype=torch.long)
            cycle[order] = order.roll(-1)
            steps = [torch.arange(CYCLE)]
            for _ in range(SIDE - 1):
                steps.append(cycle[steps[-1]])
            powers.append(torch.stack(steps))
        self.register_buffer("powers", torch.stack(powers))

    def forward(self) -> Permutation:
        assert isinstance(self.powers, Tensor)
        return Permutation(self.powers)


class Stochastic(Relative):
    """Queries Σ_d q_d Q_d(x) and keys Σ_d k_d K_d(x), E Q_d(x) K_d(y)ᵀ = Σ_w λ²_dw cos(ω_dw · (x − y) + θ_dw).

    Q_d = Ω(ωx + θ) λ z and K_d = Ω(ωx) λ z with Ω of sines and cosines and z ~ N(0, 1) / √R, R draws: equivariant in
    the mean over z. Source: Liutkus et al. 2021 (SPE), §2.2 (sineSPE), with frequencies of two axes.
    """

    name: ClassVar[str] = "stochastic"
    equivariance: ClassVar[Any] = "in expectation"
    appends_features: ClassVar[bool] = True

    def __init__(self, frequency: Tensor, phase: Tensor, gain: Tensor, noise: Tensor) -> None:
        self.frequency, self.phase, self.gain, self.noise = frequency, phase, gain, noise

    def check_compatibility(self, *, heads: int, dim: int, num_axes: int, kernel: Kernel) -> None:
        assert self.frequency.shape[-1] == num_axes

    def num_dense_passes(self, num_axes: int) -> int:
        return 3

    @property
    def num_position_features(self) -> int:
        return self.noise.shape[-1] - self.frequency.shape[1]

    def softmax_vectors(
        self, query: Tensor, key: Tensor, positions: Positions, *, scale: float
    ) -> tuple[Tensor, Tensor]:
        frequency = positions.round_frequency_to_periods(self.frequency).to(query)
        angle = torch.einsum(
            "hdwa,la->hldw", frequency, positions.coordinates(query.device).to(query)
        )

        def carried(vectors: Tensor, turned: Tensor) -> Tensor:
            waves = torch.cat([turned.cos(), turned.sin()], -1) * self.gain.repeat(1, 1, 2)[:, None]
            return scale**0.5 * torch.einsum(
                "bhld,hldw,hdwr->bhlr", vectors, waves, self.noise.to(query)
            )

        return carried(query, angle + self.phase[:, None]), carried(key, angle)

    def dense_attention(self, pairs: DenseInputs, positions: Positions) -> Tensor:
        raise NotImplementedError(
            "it joins queries and keys, so that a plan has no relative kernel left"
        )


class StochasticPositions(RelativeModule):
    """Ten learned waves for each number of a head, as the authors', and noise that is drawn anew in training."""

    def __init__(self, heads: int, dim_head: int, waves: int = 10) -> None:
        super().__init__()
        self.frequency = Parameter(torch.rand(heads, dim_head, waves, 2) * math.pi)
        self.phase = Parameter(torch.zeros(heads, dim_head, waves))
        self.raw_gain = Parameter(torch.randn(heads, dim_head, waves))
        self.register_buffer("noise", torch.randn(heads, dim_head, 2 * waves, DRAWS) / DRAWS**0.5)

    @property
    def num_position_features(self) -> int:
        """By how much queries and keys are lengthened."""
        return DRAWS - self.frequency.shape[1]

    def forward(self) -> Stochastic:
        assert isinstance(self.noise, Tensor)
        if self.training:
            self.noise.normal_(std=DRAWS**-0.5)
        gain = softplus(self.raw_gain)
        gain = gain / gain.square().sum(-1, keepdim=True).sqrt()
        return Stochastic(self.frequency, self.phase, gain, self.noise)


ROWS: dict[str, dict[str, Any]] = {
    "squared relu × rotary (ours)": {"position": "rotary"},
    "positive × rotary": {"position": "rotary", "kernel": "positive", "num_features": CYCLE**2},
    "Luo et al.: positive, normalised × table": {
        "position": "table",
        "kernel": "positive",
        "num_features": CYCLE**2,
        "query_key": "normalized",
    },
    "Toeplitz network: constant × table, gated": {
        "position": "table",
        "kernel": "constant",
        "gate": True,
    },
    "stochastic positions, positive": {
        "position": "none",
        "kernel": "positive",
        "relative": "stochastic",
    },
    "PermuteFormer, positive": {
        "position": "none",
        "kernel": "positive",
        "num_features": CYCLE**2,
        "relative": "permutation",
    },
    "positive, no position": {"position": "none", "kernel": "positive", "num_features": CYCLE**2},
}


def equip(layer: Attention, relative: str) -> None:
    """Give an attention without positions those of a peer."""
    if relative == "permutation":
        layer.relative = Permutations()
    else:
        layer.relative = StochasticPositions(layer.heads, layer.dim_head)
        layer.kernel = RandomFeatures("positive", DRAWS, num_features=DRAWS)


def build(row: str) -> Performer:
    """A model of 14 × 14 pixels whose edges meet."""
    options = dict(ROWS[row])
    relative = options.pop("relative", None)
    model = Performer(
        SIDE,
        1,
        10,
        dim=32,
        depth=2,
        heads=2,
        stem="convolution",
        periodic=True,
        pool="mean",
        **options,
    )
    for layer in model.modules():
        if isinstance(layer, Attention) and relative is not None:
            equip(layer, relative)
    return model


def train(data: str, row: str, rate: float, seed: int, data_dir: str | None) -> dict[str, Any]:
    """Train one model, and measure it on test images unless its seed is for tuning."""
    torch.set_num_threads(1)
    found = load(data, image_size=SIDE, train_size=10_000, validation_size=2000, data_dir=data_dir)
    images, labels = found.train.images, found.train.labels
    torch.manual_seed(seed)
    model = build(row)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    steps = len(images) // BATCH
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, EPOCHS * steps, pct_start=0.1)
    order, start = torch.Generator().manual_seed(seed), time.process_time()
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(images), generator=order).split(BATCH)[:steps]:
            loss = cross_entropy(model(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    model.eval()
    seconds = time.process_time() - start
    validation = float(
        cross_entropy(logits_of(model, found.validation.images), found.validation.labels)
    )
    result = {
        "data": data,
        "row": row,
        "rate": rate,
        "seed": seed,
        "seconds": seconds,
        "validation_loss": validation,
    }
    if seed == TUNING_SEED:
        return result
    answers = logits_of(model, found.test.images).argmax(1)
    shifts = [(0, 1), (3, -2), (7, 5), (-4, 4)]
    error = equivariance_error(model.double(), found.test.images[:100].double(), shifts)
    return result | {
        "accuracy": float((answers == found.test.labels).double().mean()),
        "equivariance_error": error.maximum,
        "parameters": sum(one.numel() for one in model.parameters()),
    }


def read() -> dict[str, Any]:
    """The cells and times so far."""
    return (
        json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {"cells": [], "times": {}}
    )


def run(
    cells: list[tuple[str, str, float, int]], data_dir: str | None, processes: int
) -> list[dict[str, Any]]:
    """Train the cells that are missing, each written when it is there; gives all that are."""
    content = read()
    known = {(one["data"], one["row"], one["rate"], one["seed"]) for one in content["cells"]}
    with ProcessPoolExecutor(processes) as pool:
        jobs = [pool.submit(train, *cell, data_dir) for cell in cells if cell not in known]
        for job in as_completed(jobs):
            content["cells"].append(job.result())
            write_json(OUT, content)
            print(json.dumps(job.result(), ensure_ascii=False), flush=True)
    return content["cells"]


def step_of(layer: Attention, tokens: Tensor, grid: Grid | None) -> None:
    """One forward and backward pass."""
    layer(tokens, grid).sum().backward()


def measure_times() -> dict[str, dict[str, float]]:
    """Milliseconds of one layer of width 128 with 4 heads, batch 2, forward and backward: medians of 7 by turns."""
    torch.set_num_threads(1)
    times: dict[str, dict[str, float]] = {row: {} for row in ROWS}
    for side in (28, 56):
        steps: dict[str, Callable[[], None]] = {}
        grid, tokens = Grid((side, side), periodic=True), torch.randn(2, side**2, 128)
        for row, given in ROWS.items():
            options = {
                name: one for name, one in given.items() if name not in ("relative", "position")
            }
            position = None if given["position"] == "none" else given["position"]
            layer = Attention(128, 4, relative=position, **options)
            if "relative" in given:
                equip(layer, given["relative"])
            steps[row] = partial(step_of, layer, tokens, None if layer.relative is None else grid)
        rounds: dict[str, list[float]] = {row: [] for row in ROWS}
        for number in range(8):
            for row, step in steps.items():
                start = time.perf_counter()
                step()
                if number:
                    rounds[row].append(1e3 * (time.perf_counter() - start))
        for row, found in rounds.items():
            times[row][str(side**2)] = statistics.median(found)
    return times


def main() -> None:
    """Train what is missing, tuning first, or measure times."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--time", action="store_true", help="measure times alone")
    options = parser.parse_args()
    if options.time:
        write_json(OUT, read() | {"times": measure_times()})
        return
    grid = itertools.product(DATA, ROWS, RATES, [TUNING_SEED])
    tuned = run(list(grid), options.data_dir, options.processes)

    def rate(data: str, row: str) -> float:
        losses = {
            one["rate"]: one["validation_loss"]
            for one in tuned
            if (one["data"], one["row"], one["seed"]) == (data, row, TUNING_SEED)
        }
        return min(losses, key=lambda rate: losses[rate])

    cells = [
        (data, row, rate(data, row), seed)
        for seed, data, row in itertools.product(SEEDS, DATA, ROWS)
    ]
    run(cells, options.data_dir, options.processes)


if __name__ == "__main__":
    main()
