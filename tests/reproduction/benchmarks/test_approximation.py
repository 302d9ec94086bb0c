import json

import pandas as pd
import pytest
import torch

from reproduction.benchmarks import approximation
from reproduction.benchmarks.approximation import (
    draw_queries_keys_values,
    draw_random_feature_kernels,
    fit_error_exponent,
    main,
    measure_approximation_errors,
)
from reproduction.heads.attention_patterns import compute_attention_weights
from teka.functional import TrigonometricFeatures, attention

DIM, NUM_TOKENS, DRAWS = 5, 17, 6


@pytest.fixture(scope="module")
def errors() -> pd.DataFrame:
    return measure_approximation_errors(DIM, NUM_TOKENS, [16, 64, 256], DRAWS)


def select(errors: pd.DataFrame, **levels: object) -> pd.DataFrame:
    return errors.loc[(errors[list(levels)] == pd.Series(levels)).all(axis=1)]


def test_measured_errors_equal_the_errors_of_attention(errors):
    query, key, value = draw_queries_keys_values("output", 0.25, NUM_TOKENS, DIM)
    exact = attention(query, key, value, kernel="softmax")
    expected = []
    for kernel in draw_random_feature_kernels("positive", "orthogonal", 64, DIM, DRAWS):
        output = attention(query, key, value, kernel=kernel, backend="linear")
        expected.append(((output - exact).norm() / exact.norm()).item())
    levels = {"kernel": "positive", "projection": "orthogonal", "num_features": 64}
    row = select(errors, kind="output", size=0.25, **levels).iloc[0]
    assert row.error == pytest.approx(sum(expected) / DRAWS, rel=1e-9)
    assert 0 < row.half < row.error
    mean = value.mean(dim=2, keepdim=True)
    assert row.error_of_mean == pytest.approx(((mean - exact).norm() / exact.norm()).item())

    query, key, _ = draw_queries_keys_values("ball", 0.5, NUM_TOKENS, DIM)
    exact = compute_attention_weights(query, key, kernel="softmax")
    expected = []
    for kernel in draw_random_feature_kernels("hyperbolic", "independent", 16, DIM, DRAWS):
        difference = compute_attention_weights(query, key, kernel=kernel) - exact
        expected.append(difference.abs().sum(dim=-1).max().item() / 2)
    levels = {"kernel": "hyperbolic", "projection": "independent", "num_features": 16}
    row = select(errors, kind="ball", size=0.5, **levels).iloc[0]
    assert row.error == pytest.approx(sum(expected) / DRAWS)


@pytest.mark.parametrize(("kind", "size"), [("output", 0.25), ("ball", 0.5)])
@pytest.mark.parametrize("projection", ["orthogonal", "independent"])
def test_errors_fall_with_the_square_root_of_the_number_of_features(errors, kind, size, projection):
    line = select(errors, kind=kind, size=size, kernel="positive", projection=projection)
    assert fit_error_exponent(line) == pytest.approx(-0.5, abs=0.2)


def test_tokens_of_a_ball_are_within_it_with_one_on_its_surface():
    query, key, _ = draw_queries_keys_values("ball", 0.7, NUM_TOKENS, DIM)
    for tokens in (query, key):
        lengths = tokens.norm(dim=-1) * DIM**-0.25
        assert lengths.max() == pytest.approx(0.7)
        assert lengths.min() < 0.2
    weights = compute_attention_weights(query, key, kernel="softmax")
    assert torch.allclose(weights.sum(dim=-1), torch.ones(1, 1, NUM_TOKENS, dtype=torch.float64))


def test_kernels_with_two_features_per_draw_have_half_as_many_draws():
    for kernel in draw_random_feature_kernels("trigonometric", "independent", 64, DIM, 2):
        assert isinstance(kernel, TrigonometricFeatures)
        assert kernel.projection.shape == (32, DIM)


def test_the_script_writes_its_results_and_prints_them(tmp_path, capsys, monkeypatch):
    out = tmp_path / "errors.json"
    settings = {"dim": 3, "num_tokens": 4, "num_features": [4, 8, 16], "num_draws": 2}
    monkeypatch.setattr(approximation, "SETTINGS", settings)
    main(out=out)
    assert len(json.loads(out.read_text())["rows"]) == 6 * 4 * 3 * 3
    assert "hyperbolic" in capsys.readouterr().out


def test_the_committed_errors_can_be_read(capsys):
    main(table=True)
    assert "power of the number of features" in capsys.readouterr().out
