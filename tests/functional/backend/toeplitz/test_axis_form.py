import pytest
import torch
from tests.functional.backend.toeplitz.test_axis_sums import draw
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from teka.functional.backend import with_ones
from teka.functional.backend.dense import TileForm
from teka.functional.backend.toeplitz import AxisForm, plain_axis_sums


def plain_tile(query_features: Tensor, key_features: Tensor, value: Tensor, *log_matrices: Tensor) -> Tensor:
    """What `TileForm` computes."""
    return plain_axis_sums(query_features, key_features, with_ones(value), *(torch.exp(one) for one in log_matrices))


FORMS = [(AxisForm, plain_axis_sums), (TileForm, plain_tile)]
NAMES = ["axis", "tile"]


def small() -> list[Tensor]:
    """Few numbers, for derivatives by differences."""
    inputs = draw((2, 3), (3, 2), num_features=2)
    return [one.detach()[:1, :1] if place < 3 else one.detach()[:1] for place, one in enumerate(inputs)]


@pytest.mark.parametrize(("form", "plain"), FORMS, ids=NAMES)
def test_first_second_and_forward_derivatives_are_those_of_differences(form, plain):
    leaves = [tensor.requires_grad_() for tensor in small()]
    assert gradcheck(form.apply, leaves, check_forward_ad=True)
    assert gradgradcheck(form.apply, leaves)


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize(("form", "plain"), FORMS, ids=NAMES)
def test_the_transforms_of_torch_func_go_through(form, plain, place: int):
    inputs = small()
    other = (place + 1) % len(inputs)

    def loss(function):
        return lambda *given: function(*given).sin().sum()

    for outer in (torch.func.jacfwd, torch.func.jacrev):
        found, expected = (
            outer(torch.func.grad(loss(function), place), other)(*inputs) for function in (form.apply, plain)
        )
        torch.testing.assert_close(found, expected)
    stacked = list(inputs)
    stacked[place] = torch.randn(5, *inputs[place].shape, dtype=torch.float64)
    dims = tuple(0 if one == place else None for one in range(len(inputs)))
    for change in (lambda function: function, lambda function: torch.func.grad(loss(function), other)):
        found, expected = (torch.vmap(change(function), dims)(*stacked) for function in (form.apply, plain))
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("form", "plain"), FORMS, ids=NAMES)
def test_inputs_without_a_gradient_get_none(form, plain):
    inputs = small()
    inputs[1].requires_grad_()
    inputs[4].requires_grad_()
    wanted = [inputs[1], inputs[4]]
    found = torch.autograd.grad(form.apply(*inputs).sin().sum(), wanted)
    expected = torch.autograd.grad(plain(*inputs).sin().sum(), wanted)
    torch.testing.assert_close(found, expected)
