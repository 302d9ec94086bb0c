"""How many standard errors a band must be wide to hold at every shift at once."""

from statistics import NormalDist

import torch
from jaxtyping import Float
from torch import Tensor

from teka.audit.statistics.estimate import BootstrapSettings

_CHUNK = 128


def simultaneous_critical_value(
    influence: Float[Tensor, "rows images"], settings: BootstrapSettings, *, num_constant: int = 0
) -> float:
    """Quantile of the largest studentised deviation over the rows, max_s |θ*_s − θ_s| / σ_s, by multiplier bootstrap.

    A draw is θ*_s − θ_s = Σ_i g_i u_si / N with the influences u and independent normal g_i, the same g for all rows:
    so rows that rise and fall with the same images count as one, and independent rows as many. Normal multipliers, and
    not counts of images, because a share with one failure in N takes few and skewed values under counts.

    Source: Montiel Olea and Plagborg-Møller, "Simultaneous confidence bands: theory, implementation, and an
    application to SVARs", Journal of Applied Econometrics 34 (2019), 1–17, the sup-t band; Chernozhukov, Chetverikov
    and Kato, "Gaussian approximations and multiplier bootstrap for maxima of sums of high-dimensional random vectors",
    Annals of Statistics 41 (2013), 2786–2819.

    Args:
        influence: How the value of each row moves with each image. Rows without spread are left out.
        settings: Confidence that all rows together stay within the critical value, number of draws, seed.
        num_constant: Further rows, of which nothing is known, since they had no spread: they count as independent.

    Returns:
        The critical value, at least the normal quantile at (1 + confidence) / 2, which is that of one row.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    norm = influence.square().sum(dim=1).sqrt()
    rows = influence[norm > 0] / norm[norm > 0][:, None]
    columns = rows.to(torch.float32).T.contiguous()
    largest = torch.zeros(settings.num_resamples, dtype=torch.float64)
    if len(rows):
        for start in range(0, settings.num_resamples, _CHUNK):
            size = min(_CHUNK, settings.num_resamples - start)
            multipliers = torch.randn(size, influence.shape[1], generator=generator)
            largest[start : start + size] = (multipliers @ columns).abs().amax(dim=1).to(torch.float64)
    if num_constant:
        # The largest of n independent |z| is below t with probability (2 Φ(t) − 1)^n.
        uniform = torch.rand(settings.num_resamples, generator=generator, dtype=torch.float64)
        largest = largest.maximum(torch.special.ndtri((1 + uniform ** (1 / num_constant)) / 2))
    alone = NormalDist().inv_cdf((1 + settings.confidence) / 2)
    return max(alone, torch.quantile(largest, settings.confidence).item())
