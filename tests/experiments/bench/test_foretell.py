import math

import pytest

from teka.experiments.bench.foretell import foretell_bytes, foretell_seconds, largest_bytes
from teka.experiments.bench.measure import Cost


def known(*points: tuple[int, float]) -> dict[int, Cost]:
    return {length: Cost(value, int(1000 * value), 1) for length, value in points}


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([], 0.0),
        ([(256, 3.0)], 12.0),  # one size: in proportion
        ([(64, 1.0), (256, 8.0)], 64.0),  # growth by L^1.5 goes on
        ([(16, 1e-9), (64, 1.0), (256, 8.0)], 64.0),  # the last two count
        ([(64, 3.0), (256, 3.0)], 12.0),  # that of calling operations at first: not below L
        ([(64, 1.0), (256, 64.0)], 1024.0),  # and not above L²
    ],
)
def test_time_and_memory_go_on_as_they_last_grew_between_linear_and_quadratic(points, expected: float):
    assert foretell_seconds(known(*points), 1024) == pytest.approx(expected)
    assert foretell_bytes(known(*points), 1024) == pytest.approx(1000 * expected)


def test_the_bound_of_memory_is_quadratic_growth_and_from_two_sizes_on_their_own_and_half_as_much_again():
    assert largest_bytes(known((256, 3.0)), 1024) == pytest.approx(48_000)
    assert largest_bytes(known((64, 9.0), (256, 3.0)), 1024) == pytest.approx(1.5 * 12_000)
    assert largest_bytes(known((64, 1.0), (256, 16.0)), 1024) == pytest.approx(1.5 * 256_000)
    assert largest_bytes({}, 1024) == math.inf
