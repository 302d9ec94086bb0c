import math
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reproduction.bench.layers import LAYERS, MULTIHEAD, PEER, SDPA
from reproduction.bench.report import (
    bench_table,
    conditions,
    crossover,
    draw_bench,
    line_style,
    log_log_slope,
    place_name,
    scaling,
)
from teka.reporting.style import BLACK

SIZES = (256, 1024, 4096, 16384, 65536)
POSITIVE = st.floats(1e-6, 1e6)


@given(POSITIVE, st.floats(-3, 3))
def test_a_power_of_the_number_of_tokens_has_its_exponent_as_slope_and_no_error(
    factor: float, power: float
):
    slope = log_log_slope(SIZES, [factor * length**power for length in SIZES])
    assert slope == {
        "slope": pytest.approx(power, abs=1e-9),
        "standard_error": pytest.approx(0, abs=1e-9),
    }


def test_slope_and_error_are_those_of_a_line_fitted_by_hand():
    # log₄ of the values is 0, 1, 1 at log₄ of the tokens 5, 6, 7: slope ½, residuals −1/6, 1/3, −1/6, so that their
    # squares sum to 1/6, and the error is √(1/6 / (1 · 2)).
    slope = log_log_slope((1024, 4096, 16384), (1.0, 4.0, 4.0))
    assert slope == {
        "slope": pytest.approx(0.5),
        "standard_error": pytest.approx(math.sqrt(1 / 12)),
    }


def test_sizes_below_1024_do_not_enter_and_two_others_are_too_few():
    with_small = log_log_slope((16, 256, 1024, 4096, 16384), (77.0, 0.1, 1.0, 4.0, 16.0))
    assert with_small is not None
    assert with_small["slope"] == pytest.approx(1)
    assert log_log_slope((16, 256, 1024, 4096), (1.0, 2.0, 3.0, 4.0)) is None


@given(st.floats(300, 60000), POSITIVE)
def test_lines_of_two_powers_cross_where_they_are_equal(tokens: float, factor: float):
    linear = {length: factor * length for length in SIZES}
    quadratic = {length: factor * length**2 / tokens for length in SIZES}
    found = crossover(linear, quadratic)
    assert found is not None
    assert found["where"] == "between sizes"
    assert found["tokens"] == pytest.approx(tokens)
    opposite = crossover(quadratic, linear)
    assert opposite == {"tokens": None, "where": "never within the range", "up_to": 65536}


def test_a_layer_that_is_faster_from_the_start_has_its_crossover_at_the_smallest_size_of_both():
    found = crossover({64: 9.0, 256: 1.0, 1024: 2.0}, {256: 2.0, 1024: 3.0, 4096: 5.0})
    assert found == {"tokens": 256.0, "where": "already at the smallest", "up_to": 1024}


def test_the_last_of_several_crossings_counts():
    found = crossover({1: 1.0, 4: 4.0, 16: 1.0}, {1: 2.0, 4: 2.0, 16: 2.0})
    assert found is not None
    assert found["tokens"] == pytest.approx(8)


def test_noise_between_equals_makes_no_crossover():
    assert crossover({256: 1.01, 1024: 0.99}, {256: 1.0, 1024: 1.0}) == {
        "tokens": None,
        "where": "never within the range",
        "up_to": 1024,
    }


def test_without_a_size_of_both_there_is_nothing_to_compare():
    assert crossover({256: 1.0}, {1024: 1.0}) is None


def test_every_layer_has_its_slopes_and_only_rivals_of_exact_attention_a_crossover():
    powers = {"four_gemms": 1, "squared_relu": 1, "scaled_dot_product_attention": 2}
    rows = [
        {
            "layer": layer,
            "backend": "b",
            "tokens": length,
            "seconds": length**power / 900**power,
            "peak_bytes": length,
        }
        for layer, power in powers.items()
        for length in SIZES
    ]
    found = {one["layer"]: one for one in scaling(rows)}
    assert list(found) == list(powers)
    for layer, power in powers.items():
        time, memory = found[layer]["time"], found[layer]["memory"]
        assert isinstance(time, dict)
        assert isinstance(memory, dict)
        assert (time["slope"], memory["slope"]) == (pytest.approx(power), pytest.approx(1))
    assert (
        found["four_gemms"]["crossover"]
        is found["scaled_dot_product_attention"]["crossover"]
        is None
    )
    compared = found["squared_relu"]["crossover"]
    assert isinstance(compared, dict)
    assert compared["tokens"] == pytest.approx(900)


def test_the_table_has_a_block_for_each_size_then_the_growth_what_was_left_out_and_the_machine(
    result: dict[str, Any],
):
    first, second, growth, left_out, machine = bench_table(result).split("\n\n")
    assert first.splitlines()[0] == "256 tokens (16×16)"
    assert [line.split("  ")[0] for line in first.splitlines()[3:]] == [
        "four_gemms",
        "squared_relu × rotation (toeplitz)",
        "softmax (dense)",
    ]
    assert second.splitlines()[-1].split() == [
        *("squared_relu", "×", "rotation", "(toeplitz)"),
        *("7", "742.4", "0.100", "7.25", "–", "3.62", "45.6", "12.3"),
    ]
    assert growth.splitlines()[3].split() == ["four_gemms", "1.23", "±", "0.05", "–", "–"]
    assert growth.splitlines()[4].split()[4:] == ["–", "1.23", "±", "0.05", "1,234"]
    assert left_out == "not timed: softmax (dense) at 1,024 tokens: needs 9 GB"
    assert machine == conditions(result)


def test_the_sentence_names_machine_threads_versions_date_and_sizes(result: dict[str, Any]):
    assert conditions(result) == (
        "Measured 2026-01-02 on an abacus, 10 cores, 1 thread with torch 2.6 and teka 0.1: forward and backward, "
        "batch 2, dim 256, 8 heads, bfloat16, cpu; medians over the rounds."
    )


@pytest.mark.parametrize(
    ("crossover", "words"),
    [
        ({"tokens": None, "where": "never within the range", "up_to": 4096}, "never up to 4,096"),
        ({"tokens": 256.0, "where": "already at the smallest", "up_to": 4096}, "256, the smallest"),
    ],
)
def test_a_crossover_outside_the_sizes_is_said_in_words(
    result: dict[str, Any], crossover: dict[str, Any], words: str
):
    result["scaling"][1]["crossover"] = crossover
    assert bench_table(result).split("\n\n")[2].splitlines()[-1].endswith(words)


def test_columns_are_aligned(result: dict[str, Any]):
    for block in bench_table(result).split("\n\n")[:3]:
        assert len({len(line) for line in block.splitlines()[1:]}) == 1


def test_a_layer_of_another_library_is_named_once():
    assert place_name("performer_pytorch", "performer_pytorch") == "performer_pytorch"
    assert place_name("squared_relu-clipped", "rings") == "squared_relu × clipped (rings)"
    assert place_name("squared_relu-causal", "linear") == "squared_relu, causal (linear)"


def test_each_layer_is_a_line_in_both_panels_up_to_its_last_size(result: dict[str, Any]):
    times, memory = draw_bench(result).axes
    for panel in (times, memory):
        tokens = [np.asarray(line.get_xdata()).tolist() for line in panel.get_lines()]
        assert tokens == [[256, 1024], [256, 1024], [256]]
        assert panel.get_yscale() == panel.get_xscale() == "log"
    assert np.asarray(times.get_lines()[1].get_ydata()).tolist() == pytest.approx([89.6, 742.4])
    assert np.asarray(memory.get_lines()[1].get_ydata()).tolist() == pytest.approx([12.3, 12.3])


def test_the_legend_names_each_line_and_says_which_end_early(result: dict[str, Any]):
    (legend,) = draw_bench(result).legends
    names = [text.get_text().strip() for text in legend.get_texts()]
    assert names == [
        "squared_relu × rotation (toeplitz)",
        "four_gemms",
        "softmax (dense)\nup to 256 tokens",
    ]


def test_no_two_layers_look_alike():
    styles = [line_style(layer.name, layer.backend) for layer in LAYERS]
    assert len(set(styles)) == len(LAYERS)
    black = {
        layer.name for layer, style in zip(LAYERS, styles, strict=True) if style.colour == BLACK
    }
    assert black == {SDPA, MULTIHEAD, PEER}  # what is not teka's, as the caption says


def test_drawing_leaves_pyplot_alone(result: dict[str, Any]):
    loaded = "matplotlib.pyplot" in sys.modules
    draw_bench(result)
    assert ("matplotlib.pyplot" in sys.modules) is loaded
