import pytest
import torch
from torch.testing import assert_close

from teka.audit.measure.directional_derivative import DERIVATIVES, difference_quotient


def point_and_direction():
    generator = torch.Generator().manual_seed(6)
    return tuple(torch.randn(3, 5, dtype=torch.float64, generator=generator) for _ in range(2))


@pytest.mark.parametrize("derivative", DERIVATIVES.values(), ids=DERIVATIVES)
def test_every_way_gives_the_derivative_of_a_polynomial(derivative):
    # The central difference of x² is exact: ((x + hv)² − (x − hv)²) / 2h = 2xv.
    point, direction = point_and_direction()
    value, change = derivative(lambda inputs: inputs**2, point, direction)
    assert_close(value, point**2)
    assert_close(change, 2 * point * direction)


@pytest.mark.parametrize("derivative", DERIVATIVES.values(), ids=DERIVATIVES)
def test_every_way_gives_the_derivative_of_a_matrix_product(derivative):
    point, direction = point_and_direction()
    weights = torch.arange(10.0, dtype=torch.float64).reshape(5, 2)
    assert_close(derivative(lambda inputs: inputs @ weights, point, direction)[1], direction @ weights)


def test_the_central_difference_is_off_by_the_third_derivative():
    # Of x³ it is 3x²v + h²v³, with h = 1/32.
    point, direction = point_and_direction()
    change = difference_quotient(lambda inputs: inputs**3, point, direction)[1]
    assert_close(change, 3 * point**2 * direction + direction**3 / 1024)


def test_the_central_difference_bears_a_function_that_writes_into_its_input_and_reuses_its_output():
    point, direction = point_and_direction()
    buffer = torch.empty_like(point)

    def careless(inputs):
        return buffer.copy_(inputs.mul_(3.0))

    value, change = difference_quotient(careless, point.clone(), direction)
    assert_close(value, 3 * point)
    assert_close(change, 3 * direction)
