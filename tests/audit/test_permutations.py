import pytest

from teka.audit import random_permutations
from teka.audit.permutations import check_permutations


def test_they_are_permutations_that_move_something_and_the_seed_decides_which():
    drawn = random_permutations(3, 200)
    assert set(drawn) == {(0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)}
    assert random_permutations(11, 5, seed=1) == random_permutations(11, 5, seed=1) != random_permutations(11, 5)
    assert all(sorted(order) == list(range(11)) for order in random_permutations(11, 5))


@pytest.mark.parametrize(("arguments", "message"), [((1,), "num_tokens is 1"), ((5, 0), "number is 0")])
def test_numbers_that_make_no_sense_are_refused(arguments: tuple[int, ...], message: str):
    with pytest.raises(ValueError, match=message):
        random_permutations(*arguments)


@pytest.mark.parametrize(
    ("permutations", "message"),
    [
        ([], "expected at least one permutation"),
        ([[0, 1, 2], [0, 1, 1]], r"permutations is \[0, 1, 1\], expected every number from 0 to 2 once"),
        ([[0, 1]], r"permutations is \[0, 1\]"),
    ],
)
def test_what_is_no_permutation_is_refused(permutations: list[list[int]], message: str):
    with pytest.raises(ValueError, match=message):
        check_permutations(permutations, 3)
