"""From what two models answered to the same images to their differences, with intervals and p-values."""

from collections.abc import Iterator
from statistics import NormalDist

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from teka.audit.measure.responses import Responses
from teka.audit.statistics.bca import bca_interval
from teka.audit.statistics.comparison import Comparison
from teka.audit.statistics.difference import Difference, DifferenceCurve
from teka.audit.statistics.estimate import BootstrapSettings, Curve
from teka.audit.statistics.holm import holm_adjust
from teka.audit.statistics.image_average import ImageAverage, average, average_ratio, square_root
from teka.audit.statistics.image_values import (
    agreement,
    check_same_images,
    errors,
    is_decided,
    moved_rows,
    right_at_every_shift,
    take_common,
)
from teka.audit.statistics.intervals import BOOTSTRAP, MINIMUM_IMAGES, NO_INTERVAL
from teka.audit.statistics.paired_share import mcnemar_test, paired_interval
from teka.audit.statistics.resampling import ImageResamples
from teka.audit.statistics.sign_flip import sign_flip_test
from teka.audit.statistics.simultaneous import simultaneous_critical_value
from teka.errors import wrong_value

BONETT_PRICE = "bonett-price"
BONETT_PRICE_IMAGES = "bonett-price, an image one trial"
MCNEMAR = "exact mcnemar"
SIGN_FLIPS = "sign flips of images"


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
        confidence: Of every interval and every band, between 0 and 1.
        num_resamples: Resamples of the bootstrap.
        num_flips: Random flips of the permutation test; the smallest p-value is 1 / (1 + flips).
        seed: Seed of resamples and flips.

    Raises:
        ValueError: Other images, labels, shifts or movement for the second model than for the first; responses that are
            not complete at the zero shift; a confidence outside (0, 1); or too few resamples for it.
    """
    settings = BootstrapSettings(confidence, num_resamples, seed)
    if num_flips < 1:
        raise wrong_value("num_flips", num_flips, "at least 1")
    check_same_images("second", first, second)
    # What was measured of one model only has nothing to be compared with.
    pair = take_common((first, second))
    curves: dict[str, DifferenceCurve] = {}
    numbers: dict[str, Difference] = {}
    correct = pair[0].correct, pair[1].correct
    if correct[0] is not None and correct[1] is not None:
        curves["accuracy"] = _compare_shares(correct[0], correct[1], settings)
        zero = pair[0].zero
        numbers["accuracy"] = _compare_share(correct[0][zero], correct[1][zero], settings)
        whole = (first, second) if is_decided(first) and is_decided(second) else pair
        rights = [right_at_every_shift(responses) for responses in whole]
        numbers["worst_shift_accuracy"] = _compare_share(rights[0], rights[1], settings)
    if pair[0].predictions is not None and pair[1].predictions is not None:
        curves["agreement"] = _compare_shares(agreement(pair[0]), agreement(pair[1]), settings, known=pair[0].zero)
    means = list(_mean_differences(pair[0], pair[1], ImageResamples(first.num_images, settings)))
    if means:
        per_image = torch.stack([differences for _, _, differences in means])
        p_values = sign_flip_test(per_image, num_flips=num_flips, seed=seed).tolist()
        for (name, difference, differences), p_value in zip(means, p_values, strict=True):
            numbers[name] = _compare_mean(name, difference, differences, p_value, settings)
    return Comparison(first.movement, first.num_images, pair[0].shifts, curves, numbers, confidence)


def _mean_differences(
    first: Responses, second: Responses, resamples: ImageResamples
) -> Iterator[tuple[str, ImageAverage, Float[Tensor, " images"]]]:
    """Name, difference, and the difference of each image, of all averages over images that both define."""
    moved = moved_rows(first)
    if not moved:
        return
    tables: dict[str, list[Tensor | None]] = {
        "consistency": [agreement(pair) if pair.predictions is not None else None for pair in (first, second)],
        "probability_change": [first.probability_change, second.probability_change],
        "divergence": [first.divergence, second.divergence],
    }
    for name, pair in tables.items():
        if pair[0] is not None and pair[1] is not None:
            means = [table[moved].to(torch.float64).mean(dim=0) for table in pair if table is not None]
            difference = means[0] - means[1]
            yield name, average(difference[None], resamples), difference
    squares = errors(first), errors(second)
    if squares[0] is None or squares[1] is None:
        return
    weights = torch.full((1, len(moved)), 1 / len(moved), dtype=torch.float64)
    roots, parts = [], []
    for error, norm in squares:  # pyright: ignore[reportGeneralTypeIssues]
        root = square_root(average_ratio(error[moved], norm[moved], resamples))
        roots.append(root)
        parts.append(error[moved] / norm[moved].sum(dim=1, keepdim=True))
    # √a − √b = (a − b) / (√a + √b), and a and b are sums over images: so these add up to the difference.
    total = (roots[0].values + roots[1].values)[:, None]
    share = torch.where(total > 0, (parts[0] - parts[1]) / total, 0.0)
    yield "mean_error", roots[0].less(roots[1]).combine(weights), share.mean(dim=0)


def _compare_mean(
    name: str,
    difference: ImageAverage,
    differences: Float[Tensor, " images"],
    p_value: float,
    settings: BootstrapSettings,
) -> Difference:
    value = difference.values.item()
    num_images = len(differences)
    apart = num_images - int(differences.unique(return_counts=True)[1].max())
    if name == "consistency" and apart < MINIMUM_IMAGES:
        # A difference of shares is at most 1: an image that differs is counted as if it differed at every shift.
        sides = (differences > 0).sum()[None], (differences < 0).sum()[None]
        lower, upper = (end.item() for end in paired_interval(*sides, num_images, _normal_quantile(settings)))
        method = BONETT_PRICE_IMAGES
    elif num_images < MINIMUM_IMAGES:
        lower, upper, method = value, value, NO_INTERVAL
    else:
        lower, upper = (end.item() for end in bca_interval(difference, settings.confidence))
        method = BOOTSTRAP
    return Difference(value, min(value, lower), max(value, upper), settings.confidence, p_value, method, SIGN_FLIPS)


def _compare_share(
    first: Bool[Tensor, " images"], second: Bool[Tensor, " images"], settings: BootstrapSettings
) -> Difference:
    sides = (first & ~second).sum()[None], (second & ~first).sum()[None]
    value = (sides[0] - sides[1]).item() / len(first)
    lower, upper = (end.item() for end in paired_interval(*sides, len(first), _normal_quantile(settings)))
    p_value = mcnemar_test(*sides).item()
    return Difference(value, lower, upper, settings.confidence, p_value, BONETT_PRICE, MCNEMAR)


def _compare_shares(
    first: Bool[Tensor, "shifts images"],
    second: Bool[Tensor, "shifts images"],
    settings: BootstrapSettings,
    *,
    known: int | None = None,
) -> DifferenceCurve:
    num_images = first.shape[1]
    sides = (first & ~second).sum(dim=1), (second & ~first).sum(dim=1)
    values = (sides[0] - sides[1]).to(torch.float64) / num_images
    influence = first.to(torch.float64) - second.to(torch.float64) - values[:, None]
    num_constant = int((influence == 0).all(dim=1).sum()) - (known is not None)
    critical = simultaneous_critical_value(influence, settings, num_constant=num_constant)
    ends = []
    for quantile in (_normal_quantile(settings), critical):
        for end in paired_interval(*sides, num_images, quantile):
            if known is not None:
                end[known] = 0.0
            ends.append(end)
    curve = Curve(
        *(tuple(end.tolist()) for end in (values, *ends)),
        method=f"{BONETT_PRICE}; band: {critical:.2f} for the quantile",
    )
    p_values = mcnemar_test(*sides)
    return DifferenceCurve(curve, tuple(p_values.tolist()), tuple(holm_adjust(p_values).tolist()))


def _normal_quantile(settings: BootstrapSettings) -> float:
    return NormalDist().inv_cdf((1 + settings.confidence) / 2)
