from typing import Any

import pytest

from teka.experiments.bench import bench_table
from teka.experiments.bench.table import conditions, place_name


def test_the_table_has_a_block_for_each_size_then_the_growth_what_was_left_out_and_the_machine(result: dict[str, Any]):
    first, second, growth, left_out, machine = bench_table(result).split("\n\n")
    assert first.splitlines()[0] == "256 tokens (16×16)"
    assert [line.split("  ")[0] for line in first.splitlines()[3:]] == [
        "four_gemms",
        "squared_relu × rotation (toeplitz)",
        "softmax (dense)",
    ]
    assert second.splitlines()[-1].split() == [
        *("squared_relu", "×", "rotation", "(toeplitz)"),
        *("7", "742.4", "0.1", "7.25", "–", "3.62", "45.6", "12.3"),
    ]
    assert growth.splitlines()[3].split() == ["four_gemms", "1.23", "±", "0.05", "–", "–"]
    assert growth.splitlines()[4].split()[4:] == ["–", "1.23", "±", "0.05", "1,234"]
    assert left_out == "not timed: softmax (dense) at 1,024 tokens: needs 9 GB"
    assert machine == conditions(result)


def test_the_sentence_names_machine_threads_versions_date_and_sizes(result: dict[str, Any]):
    assert conditions(result) == (
        "Measured 2026-01-02 on an abacus, 10 cores, 1 thread with torch 2.6 and teka 0.1: forward and backward, "
        "batch 2, dim 256, 8 heads, float32, cpu; medians over the rounds."
    )


@pytest.mark.parametrize(
    ("crossover", "words"),
    [
        ({"tokens": None, "where": "never within the range", "up_to": 4096}, "never up to 4,096"),
        ({"tokens": 256.0, "where": "already at the smallest", "up_to": 4096}, "256, the smallest"),
    ],
)
def test_a_crossover_outside_the_sizes_is_said_in_words(result: dict[str, Any], crossover: dict[str, Any], words: str):
    result["scaling"][1]["crossover"] = crossover
    assert bench_table(result).split("\n\n")[2].splitlines()[-1].endswith(words)


def test_columns_are_aligned(result: dict[str, Any]):
    for block in bench_table(result).split("\n\n")[:3]:
        assert len({len(line) for line in block.splitlines()[1:]}) == 1


def test_a_layer_of_another_library_is_named_once():
    assert place_name("performer_pytorch", "performer_pytorch") == "performer_pytorch"
    assert place_name("squared_relu-clipped", "rings") == "squared_relu × clipped (rings)"
    assert place_name("squared_relu-causal", "linear") == "squared_relu, causal (linear)"
