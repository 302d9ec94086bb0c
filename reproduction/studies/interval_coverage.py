"""Study of how often the confidence intervals of an audit contain the true value.

    python -m reproduction.studies.interval_coverage
    python -m reproduction.studies.tables

The first command writes interval_coverage.csv, and the second command updates the table in
interval_coverage.md. The study simulates the responses of a model to 20,000 images at 25 shifts.
Each simulated audit draws some of the images with replacement. Its intervals are compared with the
true values, which are computed from all images.
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
NUM_SIMULATIONS = 200
ROUNDING = 1e-12


class SimulatedModel(NamedTuple):
    """Parameters of a simulated classifier.

    Each image has a random margin with standard deviation 1, and each shift of an image has a
    random effect. The shifted image is classified correctly if their sum is positive.

    Attributes:
        margin: Mean margin of the images.
        effect: Standard deviation of the effects, for the median image.
        spread: Standard deviation over images of the logarithm of this standard deviation.
        tail: Standard deviation over images of the logarithm of the output error. The larger the
            value, the heavier the tail of the errors.
    """

    margin: float
    effect: float
    spread: float
    tail: float


POPULATIONS = {
    "usual": SimulatedModel(1.3, 0.3, 0.5, 0.5),
    "near 100 %": SimulatedModel(3.2, 0.05, 0.5, 0.5),
    "heavy tails": SimulatedModel(1.3, 0.3, 0.5, 1.5),
}


def simulate_responses(model: SimulatedModel, images: Tensor, seed: int) -> Responses:
    """Simulate a model's responses to images at all shifts.

    Args:
        model: Parameters of the model.
        images: Normal random numbers of shape (4, N). They determine the margin, the shift effect,
            the output error and the output norm of each image.
        seed: Random seed of the shift effects. Each seed simulates another model.
    """
    generator = torch.Generator().manual_seed(1000 + seed)
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
def simulate_all_images(model: SimulatedModel, seed: int = 0) -> tuple[Responses, dict[str, Any]]:
    """Simulate a model's responses to all 20,000 images, and compute the metrics from them.

    Audits estimate these true values from a sample of the images.

    Returns:
        The responses, and the true value of each metric. The values of a metric at each shift are
        stored under its name with the prefix "curve ".
    """
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(4, NUM_POPULATION, generator=generator, dtype=torch.float64)
    responses = simulate_responses(model, images, seed)
    metrics = summarize(responses, num_resamples=40)
    curves = {f"curve {name}": np.array(curve.values) for name, curve in metrics.curves.items()}
    numbers = {name: estimate.value for name, estimate in metrics.numbers.items()}
    return responses, numbers | curves


def select_responses(responses: Responses, indices: Tensor) -> Responses:
    """Select the responses to the images with the given indices."""
    tables = {name: table[:, indices] for name, table in responses.tables().items()}
    return replace(responses, labels=responses.labels[indices], **tables)


def simulate_audit(
    model: SimulatedModel, num_images: int, seed: int
) -> Iterator[tuple[str, str, bool]]:
    """Simulate an audit of a model, and check which intervals contain the true value.

    Yields:
        The kind of interval, its metric, and True if it contains the true value.
    """
    responses, truth = simulate_all_images(model)
    better, better_truth = simulate_all_images(model._replace(margin=model.margin + 0.2), 1)
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(NUM_POPULATION, (num_images,), generator=generator)
    seen = select_responses(responses, images)
    metrics = summarize(seen, seed=seed)
    for metric, number in metrics.numbers.items():
        if has_interval(number.method):
            yield "number", metric, interval_contains(number.lower, number.upper, truth[metric])
    for metric, curve in metrics.curves.items():
        true_value = truth[f"curve {metric}"]
        if has_interval(curve.method):
            ends = curve.lower[ONE_SHIFT], curve.upper[ONE_SHIFT]
            yield "at one shift", metric, interval_contains(*ends, true_value[ONE_SHIFT])
            yield (
                "band over shifts",
                metric,
                interval_contains(curve.band_lower, curve.band_upper, true_value),
            )
    comparison = compare_responses(seen, select_responses(better, images), num_flips=99, seed=seed)
    for metric, difference in comparison.numbers.items():
        if has_interval(difference.method):
            true_value = truth[metric] - better_truth[metric]
            yield (
                "two models",
                metric,
                interval_contains(difference.lower, difference.upper, true_value),
            )


def interval_contains(lower: Any, upper: Any, true_value: Any) -> bool:
    """Return True if an interval contains the true value of a metric.

    For a confidence band over shifts, the arguments are arrays. The band must contain the true
    value at every shift.
    """
    lower, upper = np.asarray(lower) - ROUNDING, np.asarray(upper) + ROUNDING
    return bool(((lower <= true_value) & (true_value <= upper)).all())


def measure_coverage(population: str, num_images: int) -> pd.DataFrame:
    """Simulate audits of a model, and measure how often each interval contains the true value."""
    torch.set_num_threads(1)
    model = POPULATIONS[population]
    rows = [
        row for seed in range(NUM_SIMULATIONS) for row in simulate_audit(model, num_images, seed)
    ]
    table = pd.DataFrame(rows, columns=["kind", "metric", "covered"])
    covered = table.groupby(["kind", "metric"], sort=False).covered
    counts = pd.DataFrame(
        {
            "intervals": covered.count(),
            "coverage": covered.mean(),
            "upper": wilson_interval(covered.sum().to_numpy(), covered.count().to_numpy())[1],
        }
    )
    return counts.round(3).reset_index().assign(population=population, images=num_images)


def main(*, processes: int = 1) -> None:
    """Simulate audits, and save how often their intervals contain the true value."""
    jobs = product(POPULATIONS, NUM_IMAGES)
    tables = Parallel(processes)(delayed(measure_coverage)(*job) for job in jobs)
    write_bytes(RESULTS, pd.concat(tables).to_csv(index=False).encode())


if __name__ == "__main__":
    cyclopts.run(main)
