import pytest

from teka.errors import (
    error_message,
    escape_unprintable,
    first_line_of_error,
    is_out_of_memory,
    unknown_name_error,
    wrong_shape,
    wrong_type,
    wrong_value,
)


def test_unknown_name_lists_all_known_names_and_suggests_the_closest():
    error = unknown_name_error("kernel", "sofmax", ["positive", "softmax", "constant"])
    assert isinstance(error, ValueError)
    assert (
        str(error) == "kernel must be one of 'constant', 'positive', 'softmax', got 'sofmax'. "
        "Did you mean 'softmax'?"
    )


@pytest.mark.parametrize("name", ["zzz", 7, None])
def test_unknown_name_without_a_close_match_has_no_suggestion(name: object):
    message = str(unknown_name_error("kernel", name, ["positive", "softmax"]))
    assert message == f"kernel must be one of 'positive', 'softmax', got {name!r}."


def test_wrong_value_states_the_argument_the_expectation_and_the_value():
    error = wrong_value("scale", -1.0, "a positive number")
    assert isinstance(error, ValueError)
    assert str(error) == "scale must be a positive number, got -1.0."


@pytest.mark.parametrize(("value", "kind"), [([1.0], "an object of type list"), (None, "None")])
def test_wrong_type_states_the_type_and_not_the_value(value: object, kind: str):
    error = wrong_type("query", value, "a tensor")
    assert isinstance(error, ValueError)
    assert str(error) == f"query must be a tensor, got {kind}."


def test_wrong_shape_states_the_expected_and_the_actual_shape():
    error = wrong_shape("query", [2, 3], "(batch, heads, tokens, dim)")
    assert isinstance(error, ValueError)
    assert str(error) == "query must have shape (batch, heads, tokens, dim), got (2, 3)."


def test_first_line_of_an_error_falls_back_to_its_class_name():
    assert first_line_of_error(RuntimeError("no such key\nat line 3")) == "no such key"
    assert first_line_of_error(AssertionError()) == "AssertionError"


def test_message_of_returns_one_short_printable_line():
    error = RuntimeError("first\nsecond \x1b[2J\u202e" + "x" * 1000)
    assert error_message(error).startswith(r"first second \x1b[2J\u202exxx")
    assert len(error_message(error)) == 300
    assert first_line_of_error(error) == "first"
    assert (error_message(KeyError()), first_line_of_error(ValueError("\n\n"))) == (
        "KeyError",
        "ValueError",
    )
    assert escape_unprintable("naïve 👩\u200d🔬 a\u00a0b") == "naïve 👩\u200d🔬 a\u00a0b"


def test_error_without_a_printable_message_gives_its_class_name():
    class BrokenError(Exception):
        def __str__(self) -> str:
            raise TypeError("no words")

    assert (error_message(BrokenError()), first_line_of_error(BrokenError())) == (
        "BrokenError",
        "BrokenError",
    )
    assert not is_out_of_memory(BrokenError())


def test_unknown_name_among_many_gives_their_number_and_the_closest():
    names = [f"blocks.{index}.norm" for index in range(40)]
    assert str(unknown_name_error("layers", "blocks.7.nrm", names)) == (
        "layers must be one of 40 names, got 'blocks.7.nrm'. Did you mean 'blocks.7.norm'?"
    )
