from tests.contracts.cases import draw_inputs, relative_change

from teka.functional.backend import add_prefix
from teka.functional.backend.linear import linear


def test_with_a_kernel_of_one_it_is_linear_attention_over_all_tokens():
    query, key, value = (tensor.abs() for tensor in draw_inputs(11))
    placed = linear(query[:, :, 2:], key[:, :, 2:], value[:, :, 2:])
    found, expected = add_prefix(placed, query, key, value, 2, linear), linear(query, key, value)
    assert relative_change(found.divide(nonnegative=True), expected.divide(nonnegative=True)) < 1e-14


def test_without_such_tokens_nothing_is_added():
    query, key, value = draw_inputs(5)
    placed = linear(query, key, value)
    assert add_prefix(placed, query, key, value, 0, linear) is placed
