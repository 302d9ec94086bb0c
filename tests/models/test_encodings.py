import pytest
import torch

from teka.functional import relative
from teka.functional.relative import StationaryRelative
from teka.models.encodings import ENCODINGS, make_encoding


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_heads_begin_apart_from_one_another(encoding: str):
    torch.manual_seed(0)
    kernel = make_encoding(encoding, heads=3, sides=(4, 6), embedding_dim=8)()
    assert isinstance(kernel, StationaryRelative)
    log = kernel.log_at(torch.tensor([[0.0, 0.0], [1.0, -2.0], [3.0, 5.0]]))
    assert log.shape == (3, 3)
    assert all(not torch.allclose(log[one], log[other]) for one, other in ((0, 1), (1, 2), (0, 2)))


def test_centres_have_a_standard_deviation_of_two_cells_and_gaussians_one_of_one():
    torch.manual_seed(0)
    quadratic = make_encoding("quadratic", heads=2000, sides=(4, 6), embedding_dim=8)()
    general = make_encoding("generalized_quadratic", heads=2000, sides=(4, 6), embedding_dim=8)()
    assert isinstance(quadratic, relative.Quadratic)
    assert isinstance(general, relative.GeneralizedQuadratic)
    for kernel in (quadratic, general):
        assert float(kernel.center.detach().std()) == pytest.approx(2, rel=0.05)
    torch.testing.assert_close(quadratic.precision, torch.full((2000,), 0.5))
    noise = (general.precision_factor - torch.eye(2)).detach()
    assert float(noise.std()) == pytest.approx(0.01, rel=0.05)


def test_a_table_has_an_entry_for_every_offset_on_the_grid():
    kernel = make_encoding("table", heads=2, sides=(4, 6), embedding_dim=8)()
    assert isinstance(kernel, relative.Table)
    assert kernel.max_offset == 5


def test_an_unknown_encoding_is_an_error_that_offers_the_nearest():
    with pytest.raises(ValueError, match=r"encoding is 'quadratc', .*did you mean 'quadratic'"):
        make_encoding("quadratc", heads=2, sides=(4, 6), embedding_dim=8)
