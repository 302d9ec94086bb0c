import torch
from torch import Tensor

from teka.functional.backend import checkpointed


def test_it_runs_a_second_time_for_a_gradient_and_once_without():
    calls = []

    def square(numbers: Tensor) -> Tensor:
        calls.append(len(numbers))
        return numbers.square()

    numbers = torch.arange(3.0, requires_grad=True)
    checkpointed(square, numbers).sum().backward()
    assert torch.equal(numbers.grad, 2 * numbers.detach())  # pyright: ignore[reportArgumentType]
    assert len(calls) == 2
    with torch.no_grad():
        checkpointed(square, numbers)
    assert len(calls) == 3


def test_transforms_of_torch_func_go_through():
    numbers = torch.arange(3.0)
    gradient = torch.func.grad(lambda one: checkpointed(torch.square, one).sum())(numbers)
    assert torch.equal(gradient, 2 * numbers)
