"""Coverage of the intervals of an audit: simulated audits of models whose true numbers are known.

    python -m reproduction.studies.interval_coverage
    python -m reproduction.studies.tables

The first command writes interval_coverage.csv, the second one the table of interval_coverage.md. A
population is 20,000 images and the responses of a model to each image at 25 shifts. An audit sees
some of the images, drawn with replacement. Its intervals are compared with the numbers of the whole
population.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import cyclopts
import numpy as np
import pandas as pd
import torch
from joblib import Parallel, delayed
from torch import Tensor

from teka.audit import (
    Movement,
    Responses,
    compare_responses,
    square_shifts,
    summarize,
    wilson_interval,
)
from teka.audit.statistics.intervals import has_interval
from teka.files import write_bytes

RESULTS = Path(__file__).with_suffix(".csv")
SHIFTS = square_shifts(2)
ZERO = SHIFTS.index((0, 0))
ONE_SHIFT = (ZERO + 7) % len(SHIFTS)  # the shift whose interval is checked
NUM_POPULATION, NUM_CLASSES = 20_000, 10
NUM_IMAGES = (30, 100, 500)
ROUNDING = 1e-12


class Model(NamedTuple):
    """A simulated classifier, correct where its margin plus the effect of the shift is positive."""

    margin: float  # mean over images, in standard deviations
    effect: float  # median over images of the effect of shifts
    spread: float  # of the logarithm of the effect over images
    tail: float  # σ of log-normal errors over images


POPULATIONS = {
    "usual": Model(1.3, 0.3, 0.5, 0.5),
    "near 100 %": Model(3.2, 0.05, 0.5, 0.5),
    "heavy tails": Model(1.3, 0.3, 0.5, 1.5),
}


def respond(model: Model, images: Tensor, draw: int) -> Responses:
    """Return the responses of a model to images.

    Args:
        model: The distribution of models.
        images: Properties (4, N) of the images: margin, effect, size of errors and output norm.
        draw: Number of the model among those of the distribution.
    """
    generator = torch.Generator().manual_seed(1000 + draw)
    shape = (len(SHIFTS), images.shape[1])
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    noise[ZERO] = 0.0
    effect = model.effect * (model.spread * images[1]).exp() * noise
    margin = model.margin + images[0] + effect
    others = torch.randint(1, NUM_CLASSES, shape, generator=generator)
    distance = torch.tensor(SHIFTS, dtype=torch.float64).norm(dim=1)[:, None]
    size = (model.tail * images[2] - model.tail**2 / 2).exp() * (0.3 * noise).exp() * distance
    norm = (0.3 * images[3]).exp().expand_as(size).clone()
    return Responses(
        Movement("circular"),
        SHIFTS,
        "logits",
        torch.ones(shape, dtype=torch.bool),
        error_squared=(0.1 * size).square() * norm,
        norm_squared=norm,
        labels=torch.zeros(shape[1], dtype=torch.int64),
        predictions=torch.where(margin > 0, 0, others),
        overlap=1 / (1 + 0.1 * size),
        cosine_distance=0.01 * size,
        rank=1 + (0.3 * size).long(),
    )


@cache
def population(model: Model, draw: int = 0) -> tuple[Responses, dict[str, Any]]:
    """Return the responses of a model to all images, and the true numbers and curves."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(4, NUM_POPULATION, generator=generator, dtype=torch.float64)
    responses = respond(model, images, draw)
    metrics = summarize(responses, num_resamples=40)
    curves = {f"curve {name}": np.array(curve.values) for name, curve in metrics.curves.items()}
    numbers = {name: estimate.value for name, estimate in metrics.numbers.items()}
    return responses, numbers | curves


def take_images(responses: Responses, indices: Tensor) -> Responses:
    """Return the responses for some of the images."""
    tables = {name: table[:, indices] for name, table in responses.tables().items()}
    assert responses.labels is not None
    return replace(responses, labels=responses.labels[indices], **tables)


def audit(model: Model, num_images: int, seed: int) -> Iterator[tuple[str, str, bool]]:
    """Yield for each interval of an audit its kind, its metric, and True if it covers."""
    responses, truth = population(model)
    better, better_truth = population(model._replace(margin=model.margin + 0.2), 1)
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(NUM_POPULATION, (num_images,), generator=generator)
    seen = take_images(responses, images)
    metrics = summarize(seen, seed=seed)
    for metric, number in metrics.numbers.items():
        if has_interval(number.method):
            yield "number", metric, covers(number.lower, number.upper, truth[metric])
    for metric, curve in metrics.curves.items():
        true = truth[f"curve {metric}"]
        if has_interval(curve.method):
            ends = curve.lower[ONE_SHIFT], curve.upper[ONE_SHIFT]
            yield "at one shift", metric, covers(*ends, true[ONE_SHIFT])
            yield "band over shifts", metric, covers(curve.band_lower, curve.band_upper, true)
    comparison = compare_responses(seen, take_images(better, images), num_flips=99, seed=seed)
    for metric, difference in comparison.numbers.items():
        if has_interval(difference.method):
            true = truth[metric] - better_truth[metric]
            yield "two models", metric, covers(difference.lower, difference.upper, true)


def covers(lower: Any, upper: Any, true: Any) -> bool:
    """Return True if an interval contains the true value, or a band all of them."""
    lower, upper = np.asarray(lower) - ROUNDING, np.asarray(upper) + ROUNDING
    return bool(((lower <= true) & (true <= upper)).all())


def upper_end(is_covered: pd.Series) -> float:
    """Return the upper end of the 95 % interval of a coverage."""
    return wilson_interval(int(is_covered.sum()), len(is_covered))[1]


def simulate(name: str, num_images: int, simulations: int) -> pd.DataFrame:
    """Return how often each interval covers the true number."""
    torch.set_num_threads(1)
    model = POPULATIONS[name]
    rows = [row for seed in range(simulations) for row in audit(model, num_images, seed)]
    table = pd.DataFrame(rows, columns=["kind", "metric", "covered"])
    covered = table.groupby(["kind", "metric"], sort=False).covered
    columns = {
        "intervals": covered.count(),
        "coverage": covered.mean().round(3),
        "upper": covered.agg(upper_end),
    }
    counts = pd.DataFrame(columns).round(3).reset_index()
    return counts.assign(population=name, images=num_images)


def main(*, simulations: int = 200, processes: int = 1) -> None:
    """Simulate audits, and write how often each interval covers the true number."""
    jobs = product(POPULATIONS, NUM_IMAGES)
    tables: Any = Parallel(processes)(delayed(simulate)(*job, simulations) for job in jobs)
    write_bytes(RESULTS, pd.concat(tables).to_csv(index=False).encode())


if __name__ == "__main__":
    cyclopts.run(main)
