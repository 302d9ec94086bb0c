"""Paired comparison of two models on the same images, with intervals and p-values."""

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
    """Difference of one number between two models (first minus second), with its interval.

    Args:
        value: Difference over the same images.
        lower: Lower end of the interval.
        upper: Upper end of the interval.
        confidence: Confidence level of the interval.
        p_value: Two-sided p-value of the hypothesis that there is no difference.
        method: Method of the interval: "bonett-price", "bonett-price, an image one trial",
            "bootstrap over images", or "none, …" with the reason.
        test: Test of the p-value: "exact mcnemar" or "sign flips of images".
    """

    value: float
    lower: float
    upper: float
    confidence: float
    p_value: float
    method: str
    test: str


@dataclass(frozen=True)
class DifferenceCurve:
    """Difference of a share between two models at every shift, with McNemar's p-values.

    Args:
        curve: Share of the first model minus share of the second at each shift.
        p_values: Two-sided p-value of McNemar's exact test at each shift.
        adjusted_p_values: The p-values after Holm's correction for testing several shifts.
    """

    curve: Curve
    p_values: tuple[float, ...]
    adjusted_p_values: tuple[float, ...]


@dataclass(frozen=True)
class Comparison:
    """Differences between two models (first minus second) on the same images.

    Only shifts at which both models were evaluated on all images are compared, and only numbers
    that are defined for both models.
    """

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
    """Compare the outputs of two models on the same images and shifts, first minus second.

    Shares of images, such as the accuracy at one shift, have the interval of Bonett and Price and
    McNemar's exact test. Their p-values are adjusted by Holm over the shifts of a curve. Averages
    have the BCa interval of a paired bootstrap over images and a test that flips signs at random.

    >>> import torch
    >>> from torch import nn
    >>> from teka.audit import Movement, compare_responses, measure_responses, square_shifts
    >>> model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    >>> images = torch.rand(20, 1, 8, 8)

    >>> shifts = square_shifts(1)
    >>> first = measure_responses(model, images, shifts, Movement("circular"))
    >>> second = measure_responses(nn.Flatten().eval(), images, shifts, Movement("circular"))
    >>> compare_responses(first, second).num_images
    20

    Args:
        first: Outputs of the first model.
        second: Outputs of the second model on the same images and shifts.
        confidence: Confidence level of the intervals.
        num_resamples: Number of bootstrap resamples of the images.
        num_flips: Number of random sign flips of the test for averages.
        seed: Seed of the resamples and sign flips.

    Raises:
        ValueError: The models were evaluated on different images, labels, shifts or movements, or
            `summarize` rejects an argument.
    """
    settings = BootstrapSettings(confidence, num_resamples, seed)
    check_sizes({"num_flips": num_flips}, most=MOST_RESAMPLES)
    for argument, responses in (("first", first), ("second", second)):
        check_instance(argument, responses, Responses)
    check_same_images("second", first, second)
    # Numbers that only one of the models defines cannot be compared.
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
            share = _compare_shares(values[None], others[None], settings)
            ends = share.curve.values[0], share.curve.lower[0], share.curve.upper[0]
            numbers[name] = Difference(
                *ends, confidence, share.p_values[0], BONETT_PRICE, "exact mcnemar"
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
    """Return the difference of the mean errors over nonzero shifts, and each image's part in it."""
    moved = pair[0].moved
    roots = []
    parts = []
    for responses in pair:
        assert responses.errors is not None
        error, norm = (table[moved] for table in responses.errors)
        roots.append(average(error, resamples, norm).square_root())
        parts.append(error / norm.sum(dim=1, keepdim=True))
    # √a − √b = (a − b) / (√a + √b), where a and b are sums over images. The parts of the images
    # therefore add up to the difference.
    first, second = roots
    total = (first.values + second.values)[:, None]
    share = torch.where(total > 0, (parts[0] - parts[1]) / total, 0.0)
    difference = ImageAverage(
        first.values - second.values, first.influence - second.influence, first.draws - second.draws
    )
    weights = torch.full((1, len(moved)), 1 / len(moved), dtype=torch.float64)
    return difference.combine(weights), share.mean(dim=0)


def _compare_mean(
    is_share: bool,
    mean: ImageAverage,
    differences: OfImages,
    p_value: float,
    settings: BootstrapSettings,
) -> Difference:
    value = mean.values.item()
    num_images = len(differences)
    num_different = num_images - int(differences.unique(return_counts=True)[1].max())
    if is_share and num_different < MINIMUM_IMAGES:
        # Too few images differ for a bootstrap. Count each of them as if it differed at every
        # shift, which is conservative because a difference of shares is at most 1.
        counts = (differences > 0).sum()[None], (differences < 0).sum()[None]
        lower, upper = (
            end.item() for end in paired_interval(*counts, num_images, settings.normal_quantile)
        )
        lower = min(value, lower)
        upper = max(value, upper)
        method = BONETT_PRICE_IMAGES
    else:
        estimate = estimate_mean(mean, settings.confidence)
        lower, upper, method = estimate.lower, estimate.upper, estimate.method
    return Difference(
        value, lower, upper, settings.confidence, p_value, method, "sign flips of images"
    )


def _compare_shares(
    first: Outcomes, second: Outcomes, settings: BootstrapSettings, known: int | None = None
) -> DifferenceCurve:
    num_images = first.shape[1]
    counts = (first & ~second).sum(dim=1), (second & ~first).sum(dim=1)
    values = (counts[0] - counts[1]).to(torch.float64) / num_images
    influence = first.to(torch.float64) - second.to(torch.float64) - values[:, None]
    critical = simultaneous_critical_value(influence, settings, known)
    ends = [*paired_interval(*counts, num_images, settings.normal_quantile)]
    ends += paired_interval(*counts, num_images, critical)
    if known is not None:
        for end in ends:
            end[known] = 0.0
    curve = make_curve((values, *ends), f"{BONETT_PRICE}; band: {critical:.2f} for the quantile")
    p_values = mcnemar_test(*counts)
    return DifferenceCurve(curve, tuple(p_values.tolist()), tuple(holm_adjust(p_values).tolist()))


def paired_interval(
    only_first: Counts, only_second: Counts, num_images: int, quantile: float
) -> tuple[Shares, Shares]:
    """Return the ends of Bonett and Price's interval for the difference of two paired shares.

    The interval is d ± z √((a + b − d²) / (N + 2)), clipped to [−1, 1], with
    a = (n₁ + 1) / (N + 2), b = (n₂ + 1) / (N + 2) and d = a − b. Source: Bonett and Price,
    "Adjusted Wald confidence interval for a difference of binomial proportions based on paired
    data", 2012.

    Args:
        only_first: Number n₁ of images on which only the first model succeeds.
        only_second: Number n₂ of images on which only the second model succeeds.
        num_images: Number N of images.
        quantile: Normal quantile z of the confidence level.
    """
    first, second = (
        (count.to(torch.float64) + 1) / (num_images + 2) for count in (only_first, only_second)
    )
    difference = first - second
    half = quantile * ((first + second - difference.square()) / (num_images + 2)).sqrt()
    # With a small quantile the two added images could exclude the observed difference.
    observed = (only_first - only_second).to(torch.float64) / num_images
    lower = (difference - half).clamp(min=-1.0).minimum(observed)
    return lower, (difference + half).clamp(max=1.0).maximum(observed)


def mcnemar_test(only_first: Counts, only_second: Counts) -> Shares:
    """Return exact p-values of McNemar's test that two paired shares are equal.

    The p-value is 2 P[X ≤ min(n₁, n₂)] with X ~ B(n₁ + n₂, ½).

    Args:
        only_first: Number n₁ of images on which only the first model succeeds.
        only_second: Number n₂ of images on which only the second model succeeds.
    """
    fewer = torch.minimum(only_first, only_second).to(torch.float64)
    tail = scipy_special().bdtr(fewer.numpy(), (only_first + only_second).numpy(), 0.5)
    return (2 * torch.from_numpy(tail)).clamp(max=1.0)


def holm_adjust(p_values: Float[Tensor, " tests"]) -> Float[Tensor, " tests"]:
    """Return p-values adjusted for multiple tests by Holm's method.

    The i-th of m p-values in ascending order becomes max_{j ≤ i} min(1, (m − j + 1) p_(j)).
    Source: Holm, "A simple sequentially rejective multiple test procedure", 1979.
    """
    ordered, order = p_values.sort()
    adjusted = (ordered * torch.arange(len(p_values), 0, -1)).clamp(max=1.0).cummax(dim=0).values
    return torch.empty_like(p_values).scatter(0, order, adjusted)


def sign_flip_test(
    differences: Differences, *, num_flips: int, seed: int
) -> Float[Tensor, " numbers"]:
    """Return two-sided p-values of the hypothesis that the mean of paired differences is zero.

    The signs of the images are flipped at random, the same way for all numbers. The p-value is
    (1 + number of flips with |mean| at least as large as observed) / (1 + number of flips).
    Sources: Fisher, "The Design of Experiments", 1935; Phipson and Smyth, "Permutation p-values
    should never be zero", 2010.

    Args:
        differences: Difference of each image, one row per number.
        num_flips: Number of random sign flips.
        seed: Seed of the random generator.
    """
    generator = torch.Generator().manual_seed(int(seed))
    columns = differences.T.contiguous()
    # The tolerance treats sums that differ only by rounding as equal.
    observed = differences.sum(dim=1).abs() - 1e-9 * differences.abs().sum(dim=1)
    count = torch.zeros(len(differences), dtype=torch.int64)
    for start in range(0, num_flips, _CHUNK):
        size = min(_CHUNK, num_flips - start)
        heads = torch.randint(
            2, (size, differences.shape[1]), generator=generator, dtype=torch.int8
        )
        count += (((2 * heads.to(torch.float64) - 1) @ columns).abs() >= observed).sum(dim=0)
    return (1 + count.to(torch.float64)) / (1 + num_flips)
