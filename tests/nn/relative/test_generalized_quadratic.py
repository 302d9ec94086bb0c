import pytest
import torch

from teka.functional import relative
from teka.nn.relative import GeneralizedQuadratic


def test_it_begins_round_about_scattered_centres():
    torch.manual_seed(0)
    kernel = GeneralizedQuadratic(3, 500)()
    assert isinstance(kernel, relative.GeneralizedQuadratic)
    assert kernel.center.shape == (500, 3)
    assert float(kernel.center.detach().std()) == pytest.approx(2, abs=0.15)
    assert torch.equal(kernel.precision_factor, torch.eye(3).expand(500, 3, 3))


def test_its_parameters_have_plain_names_and_gradients():
    module = GeneralizedQuadratic(2, 3)
    assert set(module.state_dict()) == {"center", "precision_factor"}
    module().log_at(torch.randn(7, 2)).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.all() for parameter in module.parameters())


@pytest.mark.parametrize(("sizes", "message"), [((0, 3), "num_axes is 0"), ((2, 0), "heads is 0")])
def test_a_size_below_one_is_refused(sizes: tuple[int, int], message: str):
    with pytest.raises(ValueError, match=message):
        GeneralizedQuadratic(*sizes)
