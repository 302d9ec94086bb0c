"""Coverage of the intervals of an audit: simulated audits of models whose true numbers are known.

    python -m reproduction.studies.interval_coverage --simulations 200 --processes 2
    python -m reproduction.studies.tables

The first command writes interval_coverage.json.gz, the second one the table of
interval_coverage.md. A population is 20,000 images and the responses of a model to each image
at 25 shifts. An audit sees some of the images, drawn with replacement. Its intervals are compared
with the numbers of the whole population.
"""

import gzip
import json
import time
from collections.abc import Iterable, Iterator
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
from torch.nn.functional import softplus

from teka.audit import (
    AuditSettings,
    Movement,
    Responses,
    compare_responses,
    error_by_phase,
    square_shifts,
    summarize,
    summarize_seeds,
    wilson_interval,
)
from teka.audit.stages import block_ends, is_precise
from teka.audit.statistics.estimate import has_interval
from teka.audit.statistics.metrics import NUMBERS
from teka.files import write_bytes
from teka.provenance import provenance

RESULTS = Path(__file__).with_suffix(".json.gz")
SHIFTS = square_shifts(2)
ZERO = SHIFTS.index((0, 0))
ONE_SHIFT = (ZERO + 7) % len(SHIFTS)  # the shift whose interval is checked
# Shifts that are odd along both axes: the last phase of a stride of 2.
ODD = [index for index, (down, right) in enumerate(SHIFTS) if down % 2 and right % 2]
NUM_POPULATION, NUM_CLASSES = 20_000, 10
NUM_IMAGES = (10, 30, 100, 500)
NUM_SEEDS, SEED_IMAGES = (3, 5), 100
SEED_SPREAD, TRUE_SEEDS = 0.5, 64  # of margins over training seeds; seeds that define the truth
PRECISION, MAX_IMAGES, STOPPED_BESIDE = 4, 800, 100  # of an audit that stops when it is precise
CHUNK = 50
ROUNDING = 1e-12
Truth = dict[str, Any]


class Model(NamedTuple):
    """A simulated classifier, correct where its margin plus the effect of the shift is positive."""

    margin: float  # mean over images, in standard deviations
    effect: float  # median over images of the effect of shifts
    spread: float  # of the logarithm of the effect over images
    tail: float  # σ of log-normal losses, changes and errors over images


POPULATIONS = {
    "usual": Model(1.3, 0.3, 0.5, 0.5),
    "two kinds of images": Model(1.0, 0.3, 3.0, 1.0),
    "near 100 %": Model(3.2, 0.05, 0.5, 0.5),
    "heavy tails": Model(1.3, 0.3, 0.5, 1.5),
    "heavier tails": Model(1.3, 0.3, 0.5, 2.0),
}


@cache
def all_images() -> Tensor:
    """Return the properties (4, N) of all images: margin, effect, size of errors, output norm."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(4, NUM_POPULATION, generator=generator, dtype=torch.float64)


def respond(model: Model, images: Tensor, draw: int, gain: float = 0.0) -> Responses:
    """Return the responses of a model to images.

    Args:
        model: The distribution of models.
        images: Properties of the images.
        draw: Number of the model among those of the distribution.
        gain: Added to the margins.
    """
    generator = torch.Generator().manual_seed(1000 + draw)
    shape = (len(SHIFTS), images.shape[1])
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    noise[ZERO] = 0.0
    effect = model.effect * (model.spread * images[1]).exp() * noise
    margin = model.margin + gain + images[0] + effect
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
        loss=softplus(-2 * margin) * (model.tail * images[2]).exp(),
        probability_change=(0.05 * size).clamp(max=1.0),
        divergence=0.02 * size,
        overlap=1 / (1 + 0.1 * size),
        cosine_distance=0.01 * size,
        rank=1 + (0.3 * size).long(),
    )


def true_numbers(responses: Responses) -> Truth:
    """Return the numbers and the curves (".name") of a whole population."""
    metrics = summarize(responses, num_resamples=40)
    curves = {f".{name}": np.array(curve.values) for name, curve in metrics.curves.items()}
    return {name: estimate.value for name, estimate in metrics.numbers.items()} | curves


@cache
def population(name: str, draw: int = 0, gain: float = 0.0) -> tuple[Responses, Truth]:
    """Return the responses of a model to all images, and the true numbers."""
    responses = respond(POPULATIONS[name], all_images(), draw, gain)
    return responses, true_numbers(responses)


@cache
def true_numbers_over_seeds(name: str) -> Truth:
    """Return the mean of the true numbers over training seeds."""
    generator = torch.Generator().manual_seed(2)
    gains = SEED_SPREAD * torch.randn(TRUE_SEEDS, generator=generator)
    # Pairs with opposite signs and the exact variance, so that few seeds have the mean of all.
    gains = torch.cat([gains, -gains])
    gains = gains * (SEED_SPREAD / gains.square().mean().sqrt())
    seeds = [
        true_numbers(respond(POPULATIONS[name], all_images(), 100 + index, gain))
        for index, gain in enumerate(gains.tolist())
    ]
    return {key: np.mean([seed[key] for seed in seeds], axis=0) for key in seeds[0]}


def check(kind: str, number: str, lower: Any, upper: Any, true: Any, method: str = "") -> list[Any]:
    """Return a row that says if an interval or a band covers the true values, if it exists."""
    if not has_interval(method):
        return []
    lower, upper = np.asarray(lower), np.asarray(upper)
    covered = (lower - ROUNDING <= true).all() and (true <= upper + ROUNDING).all()
    return [(kind, number, bool(covered))]


def check_metrics(kind: str, curve_kind: str, metrics: Any, truth: Truth) -> Iterator[Any]:
    """Check the intervals of numbers, one interval of each curve, and the bands of the curves."""
    for name, number in metrics.numbers.items():
        yield from check(kind, name, number.lower, number.upper, truth[name], number.method)
    for name, curve in metrics.curves.items():
        true = truth[f".{name}"]
        ends = curve.lower[ONE_SHIFT], curve.upper[ONE_SHIFT], true[ONE_SHIFT]
        yield from check(f"{curve_kind} at a shift", name, *ends, curve.method)
        band = curve.band_lower, curve.band_upper, true
        yield from check(f"{curve_kind}, band", name, *band, curve.method)


def audit(name: str, num_images: int, seed: int) -> Iterator[Any]:
    """Check the intervals of an audit of one model, and of its comparison with two other models."""
    responses, truth = population(name)
    better, better_truth = population(name, 1, 0.2)
    equal, _ = population(name, 2)
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(NUM_POPULATION, (num_images,), generator=generator)
    seen = responses.take_images(images)
    yield from check_metrics("number", "curve", summarize(seen, seed=seed), truth)
    for number, phases in error_by_phase(seen, 2, seed=seed).values.items():
        odd = phases[-1]
        true = truth[f".{number}"][ODD].mean()
        yield from check("phase", number, odd.lower, odd.upper, true, odd.method)
    comparison = compare_responses(seen, better.take_images(images), num_flips=999, seed=seed)
    for number, difference in comparison.numbers.items():
        true = truth[number] - better_truth[number]
        ends = difference.lower, difference.upper
        yield from check("difference", number, *ends, true, difference.method)
    if num_images == STOPPED_BESIDE:
        images_until = torch.randint(NUM_POPULATION, (MAX_IMAGES,), generator=generator)
        settings = AuditSettings(precision=PRECISION, seed=seed)
        ends = [stop for _, stop in block_ends(MAX_IMAGES, PRECISION)]
        blocks = [responses.take_images(images_until[:stop]) for stop in ends]
        precise = (block for block in blocks if is_precise(block, settings))
        stopped = next(precise, blocks[-1])
        share = summarize(stopped, seed=seed).numbers["consistency"]
        ends = share.lower, share.upper, truth["consistency"]
        yield from check("stopped when precise", "consistency", *ends, share.method)
    comparison = compare_responses(seen, equal.take_images(images), num_flips=999, seed=seed)
    for number, difference in comparison.numbers.items():
        yield "p above 0.05 of equals", number, difference.p_value > 0.05


def audit_seeds(name: str, num_seeds: int, seed: int) -> Iterator[Any]:
    """Check the intervals of means over training seeds, for other seeds and images."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(NUM_POPULATION, (SEED_IMAGES,), generator=generator)
    gains = (SEED_SPREAD * torch.randn(num_seeds, generator=generator)).tolist()
    models = [
        respond(POPULATIONS[name], all_images()[:, images], 10_000 + num_seeds * seed + index, gain)
        for index, gain in enumerate(gains)
    ]
    kind = f"{num_seeds} seeds"
    metrics = summarize_seeds(models, seed=seed).metrics
    # The extremes of a mean over seeds are not the means of the extremes.
    skipped = [name for name, one in NUMBERS.items() if one.is_extreme or one.over == "every"]
    for row in check_metrics(kind, f"{kind}, curve", metrics, true_numbers_over_seeds(name)):
        if row[0] != kind or row[1] not in skipped:
            yield row


def simulate(name: str, num_images: int, num_seeds: int, seeds: Iterable[int]) -> pd.DataFrame:
    """Check several audits. With 0 training seeds, they are audits of one model."""
    torch.set_num_threads(1)
    rows = []
    for seed in seeds:
        rows += audit_seeds(name, num_seeds, seed) if num_seeds else audit(name, num_images, seed)
    table = pd.DataFrame(rows, columns=["kind", "number", "covered"])
    return table.assign(population=name, images=num_images)


def main(*, simulations: int = 200, processes: int = 1) -> None:
    """Simulate audits, and write how often each interval covers the true number."""
    start = time.perf_counter()
    seeds = [
        range(first, min(first + CHUNK, simulations)) for first in range(0, simulations, CHUNK)
    ]
    sizes = [*product(NUM_IMAGES, [0]), *product([SEED_IMAGES], NUM_SEEDS)]
    jobs = [(name, *size, part) for (name, size, part) in product(POPULATIONS, sizes, seeds)]
    tables: Any = Parallel(processes, verbose=10)(delayed(simulate)(*job) for job in jobs)
    groups = pd.concat(tables).groupby(["kind", "number", "population", "images"], sort=False)
    rows = groups.covered.agg(intervals="count", coverage="mean", covered="sum").reset_index()
    pairs = zip(rows.pop("covered"), rows.intervals, strict=True)
    rows[["lower", "upper"]] = [wilson_interval(int(covered), int(n)) for covered, n in pairs]
    command = f"--simulations {simulations} --processes {processes}"
    content = {
        **provenance(f"python -m reproduction.studies.interval_coverage {command}"),
        "seconds": round(time.perf_counter() - start),
        "simulations": simulations,
        "rows": rows.round(4).to_dict("records"),
    }
    write_bytes(RESULTS, gzip.compress(json.dumps(content, ensure_ascii=False).encode(), mtime=0))


if __name__ == "__main__":
    cyclopts.run(main)
