"""How often the intervals of an audit cover the truth: simulated audits of models whose true numbers are known.

    python reproduction/studies/interval_coverage.py --simulations 1000 --processes 2

writes interval_coverage.json.gz beside itself; docs/interval_coverage.md has the tables. A population is 20,000 images
and what a model answers of each at 25 shifts. An audit sees some of them, drawn with replacement, and its intervals are
held against the numbers of the whole population: so every truth is known exactly.
"""

import argparse
import gzip
import json
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from teka.audit import AuditSettings, Movement, square_shifts
from teka.audit.measure.responses import Responses
from teka.audit.stages import block_ends, is_precise
from teka.audit.statistics.comparison import compare_responses
from teka.audit.statistics.estimate import Curve, Estimate, has_interval
from teka.audit.statistics.intervals import wilson_interval
from teka.audit.statistics.metrics import CURVES, NUMBERS
from teka.audit.statistics.phase import error_by_phase, sort_by_phase
from teka.audit.statistics.summarize import summarize, summarize_seeds
from teka.files import write_bytes
from teka.provenance import provenance

OUT = Path(__file__).with_suffix(".json.gz")
SHIFTS, POPULATION, CLASSES, STRIDE = square_shifts(2), 20_000, 10, (2, 2)
CONFIDENCE = 0.95  # which intervals have unless another is asked for
NUMBERS_OF_IMAGES, SEEDS, CHUNK = (10, 30, 100, 500), (3, 5), 50
# Points, and images at most, of an audit that stops when it is precise enough; done beside audits of so many images.
PRECISION, MOST_IMAGES, STOPPED_BESIDE = 4, 800, 100
SEED_SPREAD, TRUE_SEEDS = 0.5, 64  # of the margins from seed to seed; seeds whose mean is the truth
Outcome = tuple[str, str, bool, float]  # kind, number, covered, width


@dataclass(frozen=True)
class Model:
    """A classifier: an image is answered correctly where its margin and what a shift adds are positive."""

    margin: float  # mean over images, in standard deviations
    moves: float  # median over images of what shifts add
    spread: float  # of its logarithm over images: 3, and some images hardly move while others change at every shift
    tail: float  # σ of log-normal losses, changes and errors over images


POPULATIONS = {
    "usual": Model(1.3, 0.3, 0.5, 0.5),
    "two kinds of images": Model(1.0, 0.3, 3.0, 1.0),
    "near 100 %": Model(3.2, 0.05, 0.5, 0.5),
    "heavy tails": Model(1.3, 0.3, 0.5, 1.5),
    "heavier tails": Model(1.3, 0.3, 0.5, 2.0),
}


# What the page shows; the file has all.
SHOWN, NUMBERS_SHOWN = ("usual", "two kinds of images", "near 100 %", "heavy tails"), (30, 100, 500)


def answers(model: Model, images: Tensor, draw: int, difference: float = 0.0) -> Responses:
    """What a model answers of images: what is hard for one model is hard for all.

    Args:
        model: The distributions.
        images: Normal numbers (4, N): margin, how far it moves, size of a loss or error, norm of the output.
        draw: Which of the models of these distributions.
        difference: Added to the margins.
    """
    generator = torch.Generator().manual_seed(1000 + draw)
    noise = torch.randn(len(SHIFTS), images.shape[1], generator=generator, dtype=torch.float64)
    zero = SHIFTS.index((0, 0))
    noise[zero] = 0.0
    margin = (
        model.margin
        + difference
        + images[0]
        + (model.moves * (model.spread * images[1]).exp()) * noise
    )
    others = torch.randint(1, CLASSES, margin.shape, generator=generator)
    distance = torch.tensor([math.hypot(*shift) for shift in SHIFTS], dtype=torch.float64)[:, None]
    size = (model.tail * images[2] - model.tail**2 / 2).exp() * (0.3 * noise).exp() * distance
    norm = (0.3 * images[3]).exp().expand_as(size).clone()
    return Responses(
        Movement("circular"),
        SHIFTS,
        "logits",
        torch.ones_like(margin, dtype=torch.bool),
        error_squared=(0.1 * size).square() * norm,
        norm_squared=norm,
        labels=torch.zeros(images.shape[1], dtype=torch.int64),
        predictions=torch.where(margin > 0, 0, others),
        loss=torch.nn.functional.softplus(-2 * margin) * (model.tail * images[2]).exp(),
        probability_change=(0.05 * size).clamp(max=1.0),
        divergence=0.02 * size,
        overlap=1 / (1 + 0.1 * size),
        cosine_distance=0.01 * size,
        rank=1 + (0.3 * size).long(),
    )


def taken(responses: Responses, chosen: Tensor) -> Responses:
    """The responses to images of a population by their indices, some of them more than once."""
    return responses.take_images(chosen)  # type: ignore[arg-type]  # it indexes by whatever it is given


@cache
def all_images() -> Tensor:
    """The images of every population."""
    return torch.randn(
        4, POPULATION, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )


@cache
def population(name: str, draw: int = 0, difference: float = 0.0) -> Responses:
    """A population: what a draw of a model answers of all images."""
    return answers(POPULATIONS[name], all_images(), draw, difference)


def numbers_of(whole: Responses) -> tuple[dict[str, float], dict[str, Tensor]]:
    """The numbers and curves of a whole population."""
    numbers = {}
    curves = {
        key: values
        for key, metric in CURVES.items()
        if (values := metric.values(whole)) is not None
    }
    for key, metric in NUMBERS.items():
        if metric.curve not in curves:
            continue
        if metric.is_extreme:
            numbers[key] = float(
                curves[metric.curve].min()
                if metric.over == "lowest"
                else curves[metric.curve].max()
            )
        elif metric.is_share:
            values, weights = metric.of_images(whole)
            values = values.double()
            numbers[key] = float(
                values.mean() if weights is None else (values * weights).sum() / weights.sum()
            )
        else:
            numbers[key] = float(curves[metric.curve][whole.moved].mean())
    return numbers, curves


@cache
def truth(
    name: str, draw: int = 0, difference: float = 0.0
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """The numbers and curves of a population."""
    return numbers_of(population(name, draw, difference))


def of_estimate(kind: str, name: str, found: Any, true: float) -> Iterator[Outcome]:
    """Whether an interval, if there is one, covers a number."""
    if has_interval(found.method):
        yield (
            kind,
            name,
            found.lower - 1e-12 <= true <= found.upper + 1e-12,
            found.upper - found.lower,
        )


def of_curve(kind: str, name: str, found: Curve, true: Tensor, zero: int) -> Iterator[Outcome]:
    """Whether the interval at one shift covers, always the same, and whether the band does at all."""
    if not has_interval(found.method):
        return
    row = (zero + 7) % len(true)
    lower, upper, low, high = (
        torch.tensor(ends, dtype=torch.float64)
        for ends in (found.lower, found.upper, found.band_lower, found.band_upper)
    )
    inside = (lower - 1e-12 <= true) & (true <= upper + 1e-12)
    yield f"{kind} at a shift", name, bool(inside[row]), float(upper[row] - lower[row])
    inside = (low - 1e-12 <= true) & (true <= high + 1e-12)
    yield f"{kind}, band", name, bool(inside.all()), float((high - low).mean())


def of_phases(
    responses: Responses, curves: dict[str, Tensor], moved: Sequence[int], seed: int
) -> Iterator[Outcome]:
    """The phase of odd steps along both axes."""
    table = error_by_phase(responses, STRIDE, seed=seed)
    _, members = sort_by_phase([SHIFTS[row] for row in moved], STRIDE)
    weights = members[-1].double() / members[-1].sum()
    for name, values in table.values.items():
        yield from of_estimate(
            "phase", name, values[-1], float(weights @ curves[name][list(moved)])
        )


def audits(name: str, num_images: int, seeds: Sequence[int]) -> list[Outcome]:
    """The intervals of simulated audits of one model, and of differences to another that is somewhat better."""
    outcomes: list[Outcome] = []
    whole, better = population(name), population(name, 1, 0.2)
    equal = population(name, 2)
    numbers, curves = truth(name)
    of_better = truth(name, 1, 0.2)[0]
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randint(POPULATION, (num_images,), generator=generator)
        one, other, same = (taken(each, chosen) for each in (whole, better, equal))
        found = summarize(one, seed=seed)
        for key, estimate in found.numbers.items():
            outcomes += of_estimate("number", key, estimate, numbers[key])
        for key, curve in found.curves.items():
            outcomes += of_curve("curve", key, curve, curves[key], one.zero)
        outcomes += of_phases(one, curves, one.moved, seed)
        compared = compare_responses(one, other, num_flips=999, seed=seed)
        for key, difference in compared.numbers.items():
            outcomes += of_estimate("difference", key, difference, numbers[key] - of_better[key])
        if num_images == STOPPED_BESIDE:
            early = until_precise(whole, generator, seed)
            outcomes += of_estimate(
                "stopped when precise", "consistency", early, numbers["consistency"]
            )
        # Two models of one distribution, whose true numbers differ by nothing but the population's own draw of noise.
        for key, difference in compare_responses(
            one, same, num_flips=999, seed=seed
        ).numbers.items():
            outcomes.append(("p above 0.05 of equals", key, difference.p_value > 0.05, math.nan))
    return outcomes


def until_precise(whole: Responses, generator: torch.Generator, seed: int) -> Estimate:
    """The consistency with as many images as a precision needs, as `teka audit --precision` takes them."""
    chosen = torch.randint(POPULATION, (MOST_IMAGES,), generator=generator)
    settings, stop = AuditSettings(precision=PRECISION, seed=seed), 0
    for _, stop in block_ends(MOST_IMAGES, PRECISION):
        if is_precise(taken(whole, chosen[:stop]), settings):
            break
    return summarize(taken(whole, chosen[:stop]), seed=seed).numbers["consistency"]


@cache
def truth_of_seeds(name: str) -> tuple[dict[str, float], dict[str, Tensor]]:
    """The numbers of a population, the mean over seeds of training."""
    generator = torch.Generator().manual_seed(2)
    shifts = SEED_SPREAD * torch.randn(TRUE_SEEDS, generator=generator)
    # In pairs, one on either side, and with their variance, so that few seeds have the mean of all.
    shifts = torch.cat([shifts, -shifts])
    shifts = shifts * (SEED_SPREAD / shifts.square().mean().sqrt())
    model, images = POPULATIONS[name], all_images()
    found = [
        numbers_of(answers(model, images, 100 + index, float(shift)))
        for index, shift in enumerate(shifts)
    ]
    numbers = {key: sum(one[0][key] for one in found) / len(found) for key in found[0][0]}
    return numbers, {
        key: torch.stack([one[1][key] for one in found]).mean(dim=0) for key in found[0][1]
    }


def audits_of_seeds(
    name: str, num_images: int, num_seeds: int, seeds: Sequence[int]
) -> list[Outcome]:
    """The intervals of averages over seeds of training, for other seeds and images."""
    outcomes: list[Outcome] = []
    numbers, curves = truth_of_seeds(name)
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        chosen = all_images()[:, torch.randint(POPULATION, (num_images,), generator=generator)]
        margins = (SEED_SPREAD * torch.randn(num_seeds, generator=generator)).tolist()
        draws = [10_000 + num_seeds * seed + index for index in range(num_seeds)]
        trained = [
            answers(POPULATIONS[name], chosen, draw, margin)
            for draw, margin in zip(draws, margins, strict=True)
        ]
        metrics = summarize_seeds(trained, seed=seed).metrics
        for key, estimate in metrics.numbers.items():
            if not NUMBERS[key].is_extreme and NUMBERS[key].over != "every":
                outcomes += of_estimate(f"{num_seeds} seeds", key, estimate, numbers[key])
        for key, curve in metrics.curves.items():
            outcomes += of_curve(
                f"{num_seeds} seeds, curve", key, curve, curves[key], trained[0].zero
            )
    return outcomes


def chunk(job: tuple[str, int, int | None, Sequence[int]]) -> tuple[tuple[str, int], list[Outcome]]:
    """Some simulations of one population, number of images and, of seeds, their number."""
    torch.set_num_threads(1)
    name, num_images, num_seeds, seeds = job
    found = (
        audits(name, num_images, seeds)
        if num_seeds is None
        else audits_of_seeds(name, num_images, num_seeds, seeds)
    )
    return (name, num_images), found


def read() -> dict[str, Any]:
    """What was found."""
    return json.loads(gzip.decompress(OUT.read_bytes()))


def main() -> None:
    """Simulate, and write how often each interval covered."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--simulations", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    start, total = time.perf_counter(), options.simulations
    parts = [range(first, min(first + CHUNK, total)) for first in range(0, total, CHUNK)]
    jobs = [
        (name, number, None, part)
        for name in POPULATIONS
        for number in NUMBERS_OF_IMAGES
        for part in parts
    ]
    jobs += [(name, 100, seeds, part) for name in POPULATIONS for seeds in SEEDS for part in parts]
    counts: defaultdict[tuple, list[tuple[bool, float]]] = defaultdict(list)
    with ProcessPoolExecutor(options.processes) as pool:
        for done, (where, outcomes) in enumerate(pool.map(chunk, jobs), 1):
            for kind, name, covered, width in outcomes:
                counts[(kind, name, *where)].append((covered, width))
            print(f"{done} of {len(jobs)}", end="\r", flush=True)
    rows = []
    for (kind, name, model, images), found in counts.items():
        covered, given = sum(one for one, _ in found), len(found)
        lower, upper = wilson_interval(covered, given)
        width = sum(width for _, width in found) / given
        row = {
            "kind": kind,
            "number": name,
            "population": model,
            "images": images,
            "intervals": given,
        }
        row |= {
            "coverage": round(covered / given, 4),
            "lower": round(lower, 4),
            "upper": round(upper, 4),
        }
        # Of a p-value there is none; and with next to nothing known, an end may be the largest of all numbers.
        rows.append(row | {"mean_width": float(f"{width:.3g}") if math.isfinite(width) else None})
    facts = provenance(
        f"python reproduction/studies/interval_coverage.py --simulations {total} --processes {options.processes}"
    )
    truths = {
        name: {key: float(f"{value:.4g}") for key, value in truth(name)[0].items()}
        for name in POPULATIONS
    }
    seconds = round(time.perf_counter() - start)
    content = {**facts, "seconds": seconds, "simulations": total, "truths": truths, "rows": rows}
    write_bytes(OUT, gzip.compress(json.dumps(content, ensure_ascii=False).encode(), mtime=0))
    print(f"written: {OUT}, {seconds} seconds")


if __name__ == "__main__":
    main()
