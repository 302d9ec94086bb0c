"""Resamples of images: how often each image counts in each of them."""

import torch
from jaxtyping import Float
from torch import Tensor

from teka.audit.statistics.estimate import BootstrapSettings

_CHUNK = 128


class ImageResamples:
    """Resamples of N images with replacement, N images each, drawn once and used for every average.

    What is drawn are images with all their shifts. The answers for one image at different shifts depend on each other:
    to draw image-shift pairs would count them as evidence many times over.

    Source: Efron, "Bootstrap methods: another look at the jackknife", Annals of Statistics 7 (1979), 1–26.

    Args:
        num_images: Number of images N.
        settings: The number of resamples R, and the seed.
    """

    def __init__(self, num_images: int, settings: BootstrapSettings) -> None:
        generator = torch.Generator().manual_seed(settings.seed)
        counts = []
        for start in range(0, settings.num_resamples, _CHUNK):
            rows = min(_CHUNK, settings.num_resamples - start)
            drawn = torch.randint(num_images, (rows, num_images), generator=generator)
            drawn += num_images * torch.arange(rows)[:, None]
            counts.append(torch.bincount(drawn.flatten(), minlength=rows * num_images).view(rows, -1).to(torch.int16))
        self.counts = torch.cat(counts)

    def means(self, values: Float[Tensor, "rows images"]) -> Float[Tensor, "resamples rows"]:
        """Mean of each row over the images of each resample, Σ_i n_ri v_i / N: a matrix product.

        Args:
            values: A value for each image.
        """
        columns = values.T.contiguous()
        products = [chunk.to(values.dtype) @ columns for chunk in self.counts.split(_CHUNK)]
        return torch.cat(products) / values.shape[1]
