import pytest
import torch

from teka.functional import relative
from teka.nn.relative import Quadratic


def test_it_begins_as_the_paper_has_it():
    torch.manual_seed(0)
    kernel = Quadratic(3, 500)()
    assert isinstance(kernel, relative.Quadratic)
    assert kernel.center.shape == (500, 3)
    assert float(kernel.center.detach().std()) == pytest.approx(2, abs=0.15)
    assert float(kernel.center.detach().mean()) == pytest.approx(0, abs=0.15)
    assert torch.allclose(kernel.precision, torch.ones(500))


def test_its_parameters_have_plain_names_and_gradients():
    module = Quadratic(2, 3)
    assert set(module.state_dict()) == {"center", "raw_precision"}
    module().log_at(torch.randn(7, 2)).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.all() for parameter in module.parameters())


def test_its_precision_stays_positive():
    module = Quadratic(2, 3)
    torch.nn.init.constant_(module.raw_precision, -20.0)
    assert (module().precision > 0).all()


@pytest.mark.parametrize(("sizes", "message"), [((0, 3), "num_axes is 0"), ((2, 0), "heads is 0")])
def test_a_size_below_one_is_refused(sizes: tuple[int, int], message: str):
    with pytest.raises(ValueError, match=message):
        Quadratic(*sizes)
