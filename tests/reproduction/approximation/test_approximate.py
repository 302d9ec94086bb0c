"""How near random features come: errors that are known by other ways, and what the report says of them."""

import json
from typing import Any

import pytest
import torch

from reproduction.approximation import approximate
from reproduction.approximation.approximate import (
    Approximation,
    draw_kernels,
    draw_tokens,
    weights_of,
)
from reproduction.approximation.report import chosen, slope_of, write_approximation
from teka.functional import Softmax, Trigonometric, attention

SMALL = Approximation(
    dim=5,
    tokens=17,
    sizes=(0.3,),
    radii=(0.7,),
    num_features=(16, 64, 256),
    kernels=("positive", "hyperbolic"),
    draws=6,
)


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return approximate(SMALL, command="teka approximate")


def test_the_errors_are_those_of_attention_on_the_same_tokens(result):
    query, key, value = draw_tokens("output", 0.3, SMALL)
    exact = attention(query, key, value, kernel="softmax")
    errors = [
        float(
            (attention(query, key, value, kernel=kernel, backend="linear") - exact).norm()
            / exact.norm()
        )
        for kernel in draw_kernels("positive", "orthogonal", 64, SMALL)
    ]
    row = chosen(result["output"], kernel="positive", projection="orthogonal", num_features=64)[0]
    assert row["error"] == pytest.approx(sum(errors) / 6, rel=1e-9)
    assert row["lower"] < row["error"] < row["upper"]
    query_in_ball, key_in_ball, _ = draw_tokens("ball", 0.7, SMALL)
    truth = weights_of(Softmax(), query_in_ball, key_in_ball)
    worst = [
        float((weights_of(kernel, query_in_ball, key_in_ball) - truth).abs().sum(dim=-1).max()) / 2
        for kernel in draw_kernels("hyperbolic", "independent", 16, SMALL)
    ]
    of_ball = chosen(
        result["ball"], kernel="hyperbolic", projection="independent", num_features=16
    )[0]
    assert of_ball["error"] == pytest.approx(sum(worst) / 6)
    mean = value.mean(dim=2, keepdim=True)
    assert result["of_mean"][0]["error"] == pytest.approx(
        float((mean - exact).norm() / exact.norm())
    )


def test_both_errors_fall_with_the_root_of_the_number_of_features(result):
    for kind in ("output", "ball"):
        for projection in SMALL.projections[:2]:  # the third is biased
            line = chosen(result[kind], kernel="positive", projection=projection)
            slope = slope_of(line)
            assert slope is not None
            assert slope == pytest.approx(-0.5, abs=0.15), (kind, projection)


def test_a_ball_holds_its_tokens_and_one_lies_on_its_surface():
    query, key, _ = draw_tokens("ball", 0.7, SMALL)
    for tokens in (query, key):
        lengths = tokens.norm(dim=-1) * 5**-0.25
        assert lengths.max() == pytest.approx(0.7)
        assert lengths.min() < 0.2
    weights = weights_of(Softmax(), query, key)
    assert torch.allclose(weights.sum(dim=-1), torch.ones(1, 1, 17, dtype=torch.float64))


def test_two_features_a_draw_are_half_as_many_draws():
    for kernel in draw_kernels("trigonometric", "independent", 64, SMALL):
        assert isinstance(kernel, Trigonometric)
        assert kernel.projection.shape == (32, 5)


def test_the_report_has_every_number_and_its_files_are_whole(result, tmp_path):
    written = write_approximation(result, tmp_path)
    assert {path.name for path in written.files} == {
        "approximation.json", "approximation.png", "approximation.html"
    }  # fmt: skip
    kept = json.loads((tmp_path / "approximation.json").read_text(encoding="utf-8"))
    assert kept["output"] == result["output"]
    for row in result["output"]:
        if row["num_features"] == 256:
            assert f"{row['error']:.3g} ± " in written.terminal
    page = (tmp_path / "approximation.html").read_text(encoding="utf-8")
    assert "hyperbolic, fixed_norm" in page
    assert "teka approximate" in page


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": ()}, "sizes must be one value or more, each once"),
        ({"radii": (1.0, -1.0)}, "radii must be finite numbers above 0"),
        ({"num_features": (1,)}, "num_features must be at least 2.*got 1"),
        ({"kernels": ("softmax",)}, r"kernels must be .*got 'softmax'"),
        (
            {"projections": ("orthgonal",)},
            r"projections must be .*got 'orthgonal'.*Did you mean 'orthogonal'",
        ),
        ({"draws": 1}, "draws must be at least 2.*got 1"),
    ],
)
def test_a_bad_setting_is_an_error_that_names_it(options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        Approximation(**options)
