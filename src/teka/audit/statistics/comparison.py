"""What two models answered to the same images: every difference, with its interval and p-value."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from teka.audit.measure.responses import Responses, check_same_images, take_common
from teka.audit.movement import Movement
from teka.audit.statistics.bootstrap import ImageAverage, ImageResamples, average, simultaneous_critical_value
from teka.audit.statistics.estimate import BootstrapSettings, Curve, scipy_special
from teka.audit.statistics.intervals import MINIMUM_IMAGES, estimate_magnitude, make_curve
from teka.audit.statistics.metrics import CURVES, NUMBERS
from teka.checks import check_sizes

COMPARED_CURVES = tuple(name for name, metric in CURVES.items() if metric.is_share)
COMPARED_NUMBERS = tuple(name for name, metric in NUMBERS.items() if metric.is_compared)
BONETT_PRICE = "bonett-price"
BONETT_PRICE_IMAGES = "bonett-price, an image one trial"
MCNEMAR = "exact mcnemar"
SIGN_FLIPS = "sign flips of images"
_CHUNK = 256


@dataclass(frozen=True)
class Difference:
    """A number of the first model less that of the second, over the same images, with the ends of its interval.

    The method of the interval is "bonett-price", "bootstrap over images", "bonett-price, an image one trial" where
    resamples would hardly differ, or "none, …" with the reason, where both ends are the value; the test of the
    two-sided p-value that there is no difference is "exact mcnemar" or "sign flips of images".
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
    """A share of the first model less that of the second, with p-values of McNemar, also adjusted by Holm."""

    curve: Curve
    p_values: tuple[float, ...]
    adjusted_p_values: tuple[float, ...]


@dataclass(frozen=True)
class Comparison:
    """The first model less the second, over the same images and shifts; what is not defined for both is left out.

    Args:
        movement: How the images were moved.
        num_images: Number of images N.
        shifts: The shifts at which both models were evaluated with every image.
        curves: Of `COMPARED_CURVES`, the difference at each shift.
        numbers: Of `COMPARED_NUMBERS`, the differences of what `Metrics` describes, all over `shifts`.
        confidence: Confidence of the intervals.
    """

    movement: Movement
    num_images: int
    shifts: tuple[tuple[int | float, ...], ...]
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
    of a curve; averages have the BCa interval of a bootstrap over images, the same images for both models, and a
    permutation test that flips the signs of the images' differences.

    Args:
        first: What the first model answered, complete at the zero shift.
        second: What the second model answered to the same images.
        confidence: As of `summarize`.
        num_resamples: As of `summarize`.
        num_flips: Random flips of the permutation test; the smallest p-value is 1 / (1 + flips).
        seed: Seed of resamples and flips.

    Raises:
        ValueError: Other images, labels, shifts or movement for the second model than for the first; or what
            `summarize` refuses.
    """
    settings = BootstrapSettings(confidence, num_resamples, seed)
    check_sizes({"num_flips": num_flips})
    check_same_images("second", first, second)
    # What was measured of one model only has nothing to be compared with.
    pair = take_common((first, second))
    tables = {name: [metric.table(each) for each in pair] for name, metric in CURVES.items()}
    tables = {name: found for name, found in tables.items() if None not in found}
    curves: dict[str, DifferenceCurve] = {}
    for name in COMPARED_CURVES:
        if name in tables:
            known = pair[0].zero if CURVES[name].known_at_zero else None
            outcomes = [table[0] for table in tables[name] if table is not None]
            curves[name] = _compare_shares(outcomes[0], outcomes[1], settings, known)
    numbers: dict[str, Difference] = {}
    means: dict[str, tuple[ImageAverage, Tensor]] = {}
    resamples = ImageResamples(first.num_images, settings)
    for name in COMPARED_NUMBERS:
        metric = NUMBERS[name]
        if metric.curve not in tables or not all(metric.has_cases(each) for each in pair):
            continue
        if CURVES[metric.curve].is_ratio:
            means[name] = _mean_root_difference(pair[0], pair[1], resamples)
            continue
        whole = metric.over == "every" and first.is_decided and second.is_decided
        values, others = (metric.of_images(each)[0] for each in ((first, second) if whole else pair))
        if values.dtype == torch.bool:
            found = _compare_shares(values[None], others[None], settings, None)
            ends = found.curve.values[0], found.curve.lower[0], found.curve.upper[0]
            numbers[name] = Difference(*ends, confidence, found.p_values[0], BONETT_PRICE, MCNEMAR)
        else:
            means[name] = average((values - others)[None], resamples), values - others
    if means:
        differences = torch.stack([each for _, each in means.values()])
        p_values = sign_flip_test(differences, num_flips=num_flips, seed=seed).tolist()
        for (name, (mean, each)), p_value in zip(means.items(), p_values, strict=True):
            numbers[name] = _compare_mean(NUMBERS[name].is_share, mean, each, p_value, settings)
    return Comparison(first.movement, first.num_images, pair[0].shifts, curves, numbers, confidence)


def _mean_root_difference(
    first: Responses, second: Responses, resamples: ImageResamples
) -> tuple[ImageAverage, Float[Tensor, " images"]]:
    """The difference of the mean errors over all shifts but zero, and the part of each image in it."""
    moved, roots, parts = first.moved, [], []
    for responses in (first, second):
        assert responses.errors is not None
        error, norm = (table[moved] for table in responses.errors)
        roots.append(average(error, resamples, norm).square_root())
        parts.append(error / norm.sum(dim=1, keepdim=True))
    # √a − √b = (a − b) / (√a + √b), and a and b are sums over images: so these add up to the difference.
    total = (roots[0].values + roots[1].values)[:, None]
    share = torch.where(total > 0, (parts[0] - parts[1]) / total, 0.0)
    one, other = roots
    apart = ImageAverage(one.values - other.values, one.influence - other.influence, one.draws - other.draws)
    weights = torch.full((1, len(moved)), 1 / len(moved), dtype=torch.float64)
    return apart.combine(weights), share.mean(dim=0)


def _compare_mean(
    is_share: bool,
    mean: ImageAverage,
    differences: Float[Tensor, " images"],
    p_value: float,
    settings: BootstrapSettings,
) -> Difference:
    value, num_images = mean.values.item(), len(differences)
    apart = num_images - int(differences.unique(return_counts=True)[1].max())
    if is_share and apart < MINIMUM_IMAGES:
        # A difference of shares is at most 1: an image that differs is counted as if it differed at every shift.
        sides = (differences > 0).sum()[None], (differences < 0).sum()[None]
        lower, upper = (end.item() for end in paired_interval(*sides, num_images, settings.normal_quantile))
        lower, upper, method = min(value, lower), max(value, upper), BONETT_PRICE_IMAGES
    else:
        found = estimate_magnitude(mean, settings.confidence)
        lower, upper, method = found.lower, found.upper, found.method
    return Difference(value, lower, upper, settings.confidence, p_value, method, SIGN_FLIPS)


def _compare_shares(
    first: Bool[Tensor, "shifts images"],
    second: Bool[Tensor, "shifts images"],
    settings: BootstrapSettings,
    known: int | None,
) -> DifferenceCurve:
    num_images = first.shape[1]
    sides = (first & ~second).sum(dim=1), (second & ~first).sum(dim=1)
    values = (sides[0] - sides[1]).to(torch.float64) / num_images
    influence = first.to(torch.float64) - second.to(torch.float64) - values[:, None]
    num_constant = int((influence == 0).all(dim=1).sum()) - (known is not None)
    critical = simultaneous_critical_value(influence, settings, num_constant=num_constant)
    ends = [
        end
        for quantile in (settings.normal_quantile, critical)
        for end in paired_interval(*sides, num_images, quantile)
    ]
    if known is not None:
        for end in ends:
            end[known] = 0.0
    curve = make_curve((values, *ends), f"{BONETT_PRICE}; band: {critical:.2f} for the quantile")
    p_values = mcnemar_test(*sides)
    return DifferenceCurve(curve, tuple(p_values.tolist()), tuple(holm_adjust(p_values).tolist()))


def paired_interval(
    only_first: Int[Tensor, " shares"], only_second: Int[Tensor, " shares"], num_images: int, quantile: float
) -> tuple[Float[Tensor, " shares"], Float[Tensor, " shares"]]:
    """Bonett's and Price's interval for the difference of two shares of the same N images.

    d ± z √((a + b − d²) / (N + 2)) with a = (n₁ + 1) / (N + 2), b = (n₂ + 1) / (N + 2), d = a − b, within [−1, 1], for
    n₁ images that succeed for the first only and n₂ for the second only: one image more is counted on either side, so
    that the interval has a width where no image tells the two apart. z is the normal quantile, or a simultaneous one.

    Source: Bonett and Price, "Adjusted Wald confidence interval for a difference of binomial proportions based on
    paired data", Journal of Educational and Behavioral Statistics 37 (2012), 479–488.
    """
    first, second = ((count.to(torch.float64) + 1) / (num_images + 2) for count in (only_first, only_second))
    difference = first - second
    half = quantile * ((first + second - difference.square()) / (num_images + 2)).sqrt()
    # With a small quantile, the images added could push the interval past what was observed.
    observed = (only_first - only_second).to(torch.float64) / num_images
    lower = (difference - half).clamp(min=-1.0).minimum(observed)
    return lower, (difference + half).clamp(max=1.0).maximum(observed)


def mcnemar_test(only_first: Int[Tensor, " shares"], only_second: Int[Tensor, " shares"]) -> Float[Tensor, " shares"]:
    """Exact two-sided p-values of McNemar's test that two shares of the same images are equal.

    Of n = n₁ + n₂ images that tell the two apart, each is as likely on one side as on the other:
    p = min(1, 2 P[X ≤ min(n₁, n₂)]) for X binomial with n and ½.

    Source: McNemar, "Note on the sampling error of the difference between correlated proportions or percentages",
    Psychometrika 12 (1947), 153–157, with the binomial in place of its approximation.
    """
    fewer = torch.minimum(only_first, only_second).to(torch.float64)
    tail = scipy_special().bdtr(fewer.numpy(), (only_first + only_second).numpy(), 0.5)
    return (2 * torch.from_numpy(tail)).clamp(max=1.0)


def holm_adjust(p_values: Float[Tensor, " tests"]) -> Float[Tensor, " tests"]:
    """Holm's adjusted p-values: those below α are right together, but for a probability of α, however tests depend.

    Of m sorted p-values, the i-th becomes the largest of min(1, (m − j + 1) p_(j)) over j ≤ i. SciPy has no such.

    Source: Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6
    (1979), 65–70.
    """
    ordered, order = p_values.sort()
    factors = torch.arange(len(p_values), 0, -1)
    adjusted = torch.empty_like(p_values)
    adjusted[order] = (ordered * factors).clamp(max=1.0).cummax(dim=0).values
    return adjusted


def sign_flip_test(
    differences: Float[Tensor, "numbers images"], *, num_flips: int, seed: int
) -> Float[Tensor, " numbers"]:
    """Two-sided p-values that the means of paired differences are zero; all numbers are flipped together.

    If the two models were one, each image's difference would have either sign alike. p = (1 + the number of random
    flips of the images' signs with |mean| at least as large) / (1 + flips), which is valid for flips drawn at random.

    Source: Fisher, "The Design of Experiments" (1935), §21, for the test; Phipson and Smyth, "Permutation p-values
    should never be zero", Statistical Applications in Genetics and Molecular Biology 9 (2010), article 39.
    """
    generator = torch.Generator().manual_seed(seed)
    columns = differences.T.contiguous()
    # Sums that differ only by rounding are equal.
    observed = differences.sum(dim=1).abs() - 1e-9 * differences.abs().sum(dim=1)
    count = torch.zeros(len(differences), dtype=torch.int64)
    for start in range(0, num_flips, _CHUNK):
        size = min(_CHUNK, num_flips - start)
        heads = torch.randint(2, (size, differences.shape[1]), generator=generator, dtype=torch.int8)
        signs = heads.to(torch.float64).mul_(2).sub_(1)
        count += ((signs @ columns).abs() >= observed).sum(dim=0)
    return (1 + count.to(torch.float64)) / (1 + num_flips)
