import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from teka.audit.adapters.preprocessing import ROUNDING_RULES, Preprocessing
from teka.audit.adapters.verify_transform import verify_against_library
from teka.data import Normalize

READ = Preprocessing(3, 235, "bicubic", (224, 224), Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)))


def make_transform(preprocessing: Preprocessing):
    def run_transform(levels: np.ndarray) -> torch.Tensor:
        return preprocessing.normalize(
            preprocessing.resize_images(torch.from_numpy(levels).permute(2, 0, 1)[None])
        )[0]

    return run_transform


@pytest.mark.parametrize("library", ["transformers", "torchvision"])
def test_verification_finds_the_library_whose_rounding_matches(library):
    assert (
        verify_against_library(
            make_transform(replace(READ, library=library)), READ, "m", "its transform"
        ).library
        == library
    )


def test_transform_that_differs_by_a_level_or_a_pixel_is_an_error(monkeypatch):
    brighter = Normalize((0.5 - 1 / 255, 0.4, 0.3), (0.2, 0.3, 0.4))
    for other in (replace(READ, normalization=brighter), replace(READ, resampling="lanczos")):
        with pytest.raises(
            ValueError,
            match=r"model must be .*got 'm'. The pixels from its transform .* levels of 255",
        ):
            verify_against_library(make_transform(other), READ, "m", "its transform")
    monkeypatch.setitem(
        ROUNDING_RULES, "rounding up", ROUNDING_RULES["transformers"]._replace(start=math.ceil)
    )
    run_transform = make_transform(replace(READ, library="rounding up"))
    assert (
        verify_against_library(run_transform, READ, "m", "its transform").library == "rounding up"
    )
    known = {name: ROUNDING_RULES[name] for name in ("transformers", "torchvision")}
    monkeypatch.setattr("teka.audit.adapters.verify_transform.ROUNDING_RULES", known)
    with pytest.raises(ValueError, match="levels of 255"):
        verify_against_library(run_transform, READ, "m", "its transform")


def test_wrong_sizes_and_failures_of_a_transform_are_errors():
    with pytest.raises(ValueError, match="other sizes"):
        verify_against_library(
            make_transform(replace(READ, crop=(224, 223))), READ, "m", "its transform"
        )

    def fails(levels):
        raise RuntimeError("no such\npicture")

    with pytest.raises(ValueError, match=r"pictures that its transform takes \(no such picture\)"):
        verify_against_library(fails, READ, "m", "its transform")
