import pytest
import torch

from teka import Grid
from teka.functional import relative
from teka.nn.relative import Table


def test_it_begins_without_position():
    kernel = Table(2, 3)()
    assert isinstance(kernel, relative.Table)
    assert torch.equal(kernel.tables, torch.zeros(3, 2, 15))
    assert Table(2, 3, max_offset=4)().max_offset == 4


def test_its_parameters_have_plain_names_and_gradients():
    module = Table(2, 3, max_offset=3)
    assert set(module.state_dict()) == {"tables"}
    module().log_at(Grid((4, 5)).offsets()).sum().backward()
    assert module.tables.grad is not None
    assert module.tables.grad.all()


@pytest.mark.parametrize(
    ("sizes", "message"), [((0, 3, 3), "num_axes is 0"), ((2, 0, 3), "heads is 0"), ((2, 3, 0), "max_offset is 0")]
)
def test_a_size_below_one_is_refused(sizes: tuple[int, int, int], message: str):
    with pytest.raises(ValueError, match=message):
        Table(sizes[0], sizes[1], max_offset=sizes[2])
