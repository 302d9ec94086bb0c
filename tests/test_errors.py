import pytest

from teka.errors import (
    first_line,
    is_out_of_memory,
    message_of,
    printable,
    unknown_name,
    wrong_shape,
    wrong_type,
    wrong_value,
)


def test_an_unknown_name_comes_with_all_known_ones_and_the_nearest():
    error = unknown_name("kernel", "sofmax", ["positive", "softmax", "constant"])
    assert isinstance(error, ValueError)
    assert (
        str(error)
        == "kernel is 'sofmax', expected one of 'constant', 'positive', 'softmax'; did you mean 'softmax'?"
    )


@pytest.mark.parametrize("name", ["zzz", 7, None])
def test_a_name_near_to_none_comes_without_a_guess(name: object):
    message = str(unknown_name("kernel", name, ["positive", "softmax"]))
    assert message == f"kernel is {name!r}, expected one of 'positive', 'softmax'"


def test_a_wrong_value_is_named_with_what_came_and_what_was_expected():
    error = wrong_value("scale", -1.0, "a positive number")
    assert isinstance(error, ValueError)
    assert str(error) == "scale is -1.0, expected a positive number"


@pytest.mark.parametrize(("came", "named"), [([1.0], "of type list"), (None, "None")])
def test_a_wrong_type_is_named_and_not_the_value(came: object, named: str):
    error = wrong_type("query", came, "a tensor")
    assert isinstance(error, ValueError)
    assert str(error) == f"query is {named}, expected a tensor"


def test_a_wrong_shape_is_named_with_what_came_and_what_was_expected():
    error = wrong_shape("query", [2, 3], "(batch, heads, tokens, dim)")
    assert isinstance(error, ValueError)
    assert str(error) == "query has shape (2, 3), expected (batch, heads, tokens, dim)"


def test_the_reason_of_an_error_is_its_first_line_or_its_class():
    assert first_line(RuntimeError("no such key\nat line 3")) == "no such key"
    assert first_line(AssertionError()) == "AssertionError"


def test_a_message_from_elsewhere_is_one_short_printable_line():
    error = RuntimeError("first\nsecond \x1b[2J\u202e" + "x" * 1000)
    assert message_of(error).startswith(r"first second \x1b[2J\u202exxx")
    assert len(message_of(error)) == 300
    assert first_line(error) == "first"
    assert (message_of(KeyError()), first_line(ValueError("\n\n"))) == ("KeyError", "ValueError")
    assert printable("naïve 👩\u200d🔬 a\u00a0b") == "naïve 👩\u200d🔬 a\u00a0b"


def test_a_message_that_cannot_be_made_is_the_name_of_its_class():
    class BrokenError(Exception):
        def __str__(self) -> str:
            raise TypeError("no words")

    assert (message_of(BrokenError()), first_line(BrokenError())) == ("BrokenError", "BrokenError")
    assert not is_out_of_memory(BrokenError())


def test_of_many_names_the_nearest_are_listed():
    names = [f"blocks.{index}.norm" for index in range(40)]
    assert str(unknown_name("layers", "blocks.7.nrm", names)) == (
        "layers is 'blocks.7.nrm', expected one of 40 names; did you mean 'blocks.7.norm', 'blocks.37.norm' or "
        "'blocks.27.norm'?"
    )
