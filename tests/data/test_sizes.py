import pytest

from teka.data.sizes import height_and_width, whole_number


def test_whole_numbers_in_range_come_back():
    assert [whole_number("n", value, smallest=2, largest=5) for value in (2, 3, 5)] == [2, 3, 5]
    assert whole_number("n", 10**9, smallest=0) == 10**9


@pytest.mark.parametrize("value", [1, 6, 3.0, "3", True, None])
def test_other_values_are_errors_that_name_the_argument_and_the_range(value: object):
    with pytest.raises(ValueError, match=r"n is .*, expected a whole number from 2 to 5"):
        whole_number("n", value, smallest=2, largest=5)


def test_one_side_is_a_square_and_two_are_height_and_width():
    assert height_and_width("size", 5) == (5, 5)
    assert height_and_width("size", (5, 7)) == height_and_width("size", [5, 7]) == (5, 7)


@pytest.mark.parametrize("size", [2, (3, 2), (2, 3), (), (5,), (5, 5, 5), (True, 5)])
def test_other_sizes_are_errors_that_name_the_argument_and_the_smallest(size: int | tuple[int, ...]):
    with pytest.raises(ValueError, match=r"size is .* each at least 3 pixels"):
        height_and_width("size", size, smallest=3)
