import pytest
import torch

from teka.functional import relative
from teka.functional.relative import ROTARY_NORMALIZERS
from teka.nn.relative import Rotary


def test_it_begins_with_geometric_frequencies_in_directions_of_their_own():
    kernel = Rotary(3, 2, 5, base=32.0)()
    assert isinstance(kernel, relative.Rotary)
    assert kernel.frequency.shape == (2, 5, 3)
    assert torch.allclose(kernel.frequency.norm(dim=-1), torch.tensor([1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16]).expand(2, 5))
    directions = kernel.frequency / kernel.frequency.norm(dim=-1, keepdim=True)
    assert not torch.allclose(directions[0, 0], directions[1, 0])
    assert not torch.allclose(directions[0, 0], directions[0, 1])


def test_its_parameters_have_plain_names_and_gradients():
    module = Rotary(2, 3, 2)
    assert set(module.state_dict()) == {"frequency"}
    features, positions = torch.randn(1, 3, 7, 5), torch.randn(7, 2)
    (module().turn(features, positions) * features).sum().backward()
    assert module.frequency.grad is not None
    assert module.frequency.grad.all()


@pytest.mark.parametrize(
    ("sizes", "message"), [((0, 3, 3), "num_axes is 0"), ((2, 0, 3), "heads is 0"), ((2, 3, 0), "num_pairs is 0")]
)
def test_a_size_below_one_is_refused(sizes: tuple[int, int, int], message: str):
    with pytest.raises(ValueError, match=message):
        Rotary(*sizes)


def test_a_base_that_is_not_positive_is_refused():
    with pytest.raises(ValueError, match="base is 0"):
        Rotary(2, 3, 2, base=0.0)


def test_its_normalizer_reaches_the_kernel_and_an_unknown_one_is_refused():
    assert Rotary(2, 3, 2)().normalizer == ROTARY_NORMALIZERS[0]
    found = Rotary(2, 3, 2, normalizer="mixed", length_share=0.2)()
    assert (found.normalizer, found.length_share) == ("mixed", 0.2)
    with pytest.raises(ValueError, match=r"normalizer is 'length', expected .*; did you mean 'lengths'"):
        Rotary(2, 3, 2, normalizer="length")
