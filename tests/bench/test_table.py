from typing import Any

from teka.bench import bench_table
from teka.bench.table import place_name


def test_the_table_has_a_block_for_each_size_and_tells_what_was_left_out(result: dict[str, Any]):
    first, second, left_out = bench_table(result).split("\n\n")
    assert first.splitlines()[0] == "16×16 = 256 tokens"
    assert [line.split("  ")[0] for line in first.splitlines()[3:]] == [
        "four_gemms",
        "squared_relu × rotation (toeplitz)",
        "softmax (dense)",
    ]
    assert second.splitlines()[-1].split() == [
        *("squared_relu", "×", "rotation", "(toeplitz)"),
        *("742.4", "0.1", "7.25", "3.62", "45.6", "12.3"),
    ]
    assert left_out == "not timed: softmax (dense) at 32×32: needs 9 GB"


def test_columns_are_aligned(result: dict[str, Any]):
    for block in bench_table(result).split("\n\n")[:2]:
        assert len({len(line) for line in block.splitlines()[1:]}) == 1


def test_a_layer_of_another_library_is_named_once():
    assert place_name("performer_pytorch", "performer_pytorch") == "performer_pytorch"
    assert place_name("squared_relu-clipped", "rings") == "squared_relu × clipped (rings)"
