"""What two models answered to the same images: every difference, with its interval and p-value."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from teka.audit.measure.responses import Responses, check_same_images, take_common
from teka.audit.movement import Movement
from teka.audit.shifts import CheckedShifts
from teka.audit.statistics.bootstrap import (
    ImageAverage,
    ImageResamples,
    average,
    simultaneous_critical_value,
)
from teka.audit.statistics.estimate import MOST_RESAMPLES, BootstrapSettings, Curve, scipy_special
from teka.audit.statistics.intervals import MINIMUM_IMAGES, Outcomes, estimate_mean, make_curve
from teka.audit.statistics.metrics import CURVES, NUMBERS
from teka.checks import check_instance, check_sizes

COMPARED_NUMBERS = tuple(
    name for name, metric in NUMBERS.items() if metric.over in ("zero", "every", "mean")
)
BONETT_PRICE = "bonett-price"
BONETT_PRICE_IMAGES = "bonett-price, an image one trial"
OfImages = Float[Tensor, " images"]
Pair = Sequence[Responses]
Differences = Float[Tensor, "numbers images"]
Counts = Int[Tensor, " shares"]
Shares = Float[Tensor, " shares"]
_CHUNK = 256


@dataclass(frozen=True)
class Difference:
    """A number of the first model less that of the second, over the same images, with the ends of its interval."""

    value: float
    lower: float
    upper: float
    confidence: float
    p_value: float  # two-sided, that there is no difference
    method: str  # "bonett-price", the same with "an image one trial", "bootstrap over images", or "none, …"
    test: str  # "exact mcnemar" or "sign flips of images"


@dataclass(frozen=True)
class DifferenceCurve:
    """A share of the first model less that of the second, with p-values of McNemar, also adjusted by Holm."""

    curve: Curve
    p_values: tuple[float, ...]
    adjusted_p_values: tuple[float, ...]


@dataclass(frozen=True)
class Comparison:
    """The first model less the second, over the same images, at the shifts complete for both, where both define it."""

    movement: Movement
    num_images: int
    shifts: CheckedShifts
    curves: dict[str, DifferenceCurve]
    numbers: dict[str, Difference]
    confidence: float


def compare_responses(
    first: Responses,
    second: Responses,
    *,
    confidence: float = 0.95,
    num_resamples: int = 1000,
    num_flips: int = 9999,
    seed: int = 0,
) -> Comparison:
    """How much two models differ over the same images at the same shifts: the first less the second.

    Shares of images have Bonett's and Price's interval and the exact test of McNemar, adjusted by Holm over the shifts
    of a curve; averages have the BCa interval of a bootstrap over images, the same for both, and a permutation test of
    so many flips of the images' signs. The other arguments are as of `summarize`.

    Raises:
        ValueError: Other images, labels, shifts or movement for the second model; or what `summarize` refuses.
    """
    settings = BootstrapSettings(confidence, num_resamples, seed)
    check_sizes({"num_flips": num_flips}, most=MOST_RESAMPLES)
    for argument, responses in (("first", first), ("second", second)):
        check_instance(argument, responses, Responses)
    check_same_images("second", first, second)
    # What was measured of one model only has nothing to be compared with.
    pair = take_common((first, second))
    defined = {name: metric for name, metric in CURVES.items() if all(map(metric.table, pair))}
    curves = {
        name: _compare_shares(
            metric.of(pair[0]), metric.of(pair[1]), settings, metric.known(pair[0])
        )
        for name, metric in defined.items()
        if metric.is_share and metric.of(pair[0]).dtype == torch.bool
    }
    numbers: dict[str, Difference] = {}
    means: dict[str, tuple[ImageAverage, Tensor]] = {}
    resamples = ImageResamples(first.num_images, settings)
    for name in COMPARED_NUMBERS:
        metric = NUMBERS[name]
        if metric.curve not in defined or not all(metric.has_cases(each) for each in pair):
            continue
        if CURVES[metric.curve].is_ratio:
            means[name] = _mean_root_difference(pair, resamples)
            continue
        whole = metric.over == "every" and first.is_decided and second.is_decided
        values, others = (
            metric.of_images(each)[0] for each in ((first, second) if whole else pair)
        )
        if values.dtype == torch.bool:
            found = _compare_shares(values[None], others[None], settings)
            ends = found.curve.values[0], found.curve.lower[0], found.curve.upper[0]
            numbers[name] = Difference(
                *ends, confidence, found.p_values[0], BONETT_PRICE, "exact mcnemar"
            )
        else:
            means[name] = average((values - others)[None], resamples), values - others
    if means:
        differences = torch.stack([each for _, each in means.values()])
        p_values = sign_flip_test(differences, num_flips=num_flips, seed=seed).tolist()
        for (name, (mean, each)), p_value in zip(means.items(), p_values, strict=True):
            numbers[name] = _compare_mean(NUMBERS[name].is_share, mean, each, p_value, settings)
    return Comparison(first.movement, first.num_images, pair[0].shifts, curves, numbers, confidence)


def _mean_root_difference(pair: Pair, resamples: ImageResamples) -> tuple[ImageAverage, OfImages]:
    """The difference of the mean errors over all shifts but zero, and the part of each image in it."""
    moved, roots, parts = pair[0].moved, [], []
    for responses in pair:
        assert responses.errors is not None
        error, norm = (table[moved] for table in responses.errors)
        roots.append(average(error, resamples, norm).square_root())
        parts.append(error / norm.sum(dim=1, keepdim=True))
    # √a − √b = (a − b) / (√a + √b), and a and b are sums over images: so these add up to the difference.
    one, other = roots
    total = (one.values + other.values)[:, None]
    share = torch.where(total > 0, (parts[0] - parts[1]) / total, 0.0)
    apart = ImageAverage(
        one.values - other.values, one.influence - other.influence, one.draws - other.draws
    )
    weights = torch.full((1, len(moved)), 1 / len(moved), dtype=torch.float64)
    return apart.combine(weights), share.mean(dim=0)


def _compare_mean(
    is_share: bool,
    mean: ImageAverage,
    differences: OfImages,
    p_value: float,
    settings: BootstrapSettings,
) -> Difference:
    value, num_images = mean.values.item(), len(differences)
    apart = num_images - int(differences.unique(return_counts=True)[1].max())
    if is_share and apart < MINIMUM_IMAGES:
        # A difference of shares is at most 1: an image that differs is counted as if it differed at every shift.
        sides = (differences > 0).sum()[None], (differences < 0).sum()[None]
        lower, upper = (
            end.item() for end in paired_interval(*sides, num_images, settings.normal_quantile)
        )
        lower, upper, method = min(value, lower), max(value, upper), BONETT_PRICE_IMAGES
    else:
        found = estimate_mean(mean, settings.confidence)
        lower, upper, method = found.lower, found.upper, found.method
    return Difference(
        value, lower, upper, settings.confidence, p_value, method, "sign flips of images"
    )


def _compare_shares(
    one: Outcomes, other: Outcomes, settings: BootstrapSettings, known: int | None = None
) -> DifferenceCurve:
    num_images, sides = one.shape[1], ((one & ~other).sum(dim=1), (other & ~one).sum(dim=1))
    values = (sides[0] - sides[1]).to(torch.float64) / num_images
    influence = one.to(torch.float64) - other.to(torch.float64) - values[:, None]
    critical = simultaneous_critical_value(influence, settings, known)
    ends = [*paired_interval(*sides, num_images, settings.normal_quantile)]
    ends += paired_interval(*sides, num_images, critical)
    if known is not None:
        for end in ends:
            end[known] = 0.0
    curve = make_curve((values, *ends), f"{BONETT_PRICE}; band: {critical:.2f} for the quantile")
    p_values = mcnemar_test(*sides)
    return DifferenceCurve(curve, tuple(p_values.tolist()), tuple(holm_adjust(p_values).tolist()))


def paired_interval(
    only_first: Counts, only_second: Counts, num_images: int, quantile: float
) -> tuple[Shares, Shares]:
    """Bonett's and Price's interval (2012) for the difference of two shares of the same N images, with a quantile z.

    d ± z √((a + b − d²) / (N + 2)), within [−1, 1], with a = (n₁ + 1) / (N + 2), b = (n₂ + 1) / (N + 2), d = a − b, for
    n₁ images that succeed for the first only, n₂ for the second only.
    """
    first, second = (
        (count.to(torch.float64) + 1) / (num_images + 2) for count in (only_first, only_second)
    )
    difference = first - second
    half = quantile * ((first + second - difference.square()) / (num_images + 2)).sqrt()
    # With a small quantile, the images added could push the interval past what was observed.
    observed = (only_first - only_second).to(torch.float64) / num_images
    lower = (difference - half).clamp(min=-1.0).minimum(observed)
    return lower, (difference + half).clamp(max=1.0).maximum(observed)


def mcnemar_test(only_first: Counts, only_second: Counts) -> Shares:
    """McNemar's exact p-values that two shares of the same images are equal: 2 P[X ≤ min(n₁, n₂)], X ~ B(n, ½)."""
    fewer = torch.minimum(only_first, only_second).to(torch.float64)
    tail = scipy_special().bdtr(fewer.numpy(), (only_first + only_second).numpy(), 0.5)
    return (2 * torch.from_numpy(tail)).clamp(max=1.0)


def holm_adjust(p_values: Float[Tensor, " tests"]) -> Float[Tensor, " tests"]:
    """Holm's adjusted p-values (1979): the i-th of m sorted ones becomes max_{j ≤ i} min(1, (m − j + 1) p_(j))."""
    ordered, order = p_values.sort()
    adjusted = (ordered * torch.arange(len(p_values), 0, -1)).clamp(max=1.0).cummax(dim=0).values
    return torch.empty_like(p_values).scatter(0, order, adjusted)


def sign_flip_test(
    differences: Differences, *, num_flips: int, seed: int
) -> Float[Tensor, " numbers"]:
    """Two-sided p-values that the means of paired differences are zero; all numbers are flipped together.

    p = (1 + the number of random flips of the images' signs with |mean| at least as large) / (1 + flips), after Fisher
    1935 and Phipson and Smyth 2010.
    """
    generator = torch.Generator().manual_seed(int(seed))
    columns = differences.T.contiguous()
    # Sums that differ only by rounding are equal.
    observed = differences.sum(dim=1).abs() - 1e-9 * differences.abs().sum(dim=1)
    count = torch.zeros(len(differences), dtype=torch.int64)
    for start in range(0, num_flips, _CHUNK):
        size = min(_CHUNK, num_flips - start)
        heads = torch.randint(
            2, (size, differences.shape[1]), generator=generator, dtype=torch.int8
        )
        count += (((2 * heads.to(torch.float64) - 1) @ columns).abs() >= observed).sum(dim=0)
    return (1 + count.to(torch.float64)) / (1 + num_flips)
