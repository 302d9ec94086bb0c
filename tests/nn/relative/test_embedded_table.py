import pytest
import torch

from teka import Grid
from teka.functional import relative
from teka.nn.relative import EmbeddedTable


def test_an_entry_is_the_product_of_a_heads_vector_and_an_offsets_embedding():
    torch.manual_seed(0)
    module = EmbeddedTable(2, 3, max_offset=4, embedding_dim=5)
    kernel = module()
    assert isinstance(kernel, relative.Table)
    assert kernel.tables.shape == (3, 2, 9)
    for head, axis, entry in ((0, 0, 0), (2, 1, 3), (1, 0, 8)):
        vector = module.get_parameter(f"head_vectors.{axis}.weight")[head]
        embedding = module.get_parameter(f"embeddings.{axis}.weight")[entry]
        torch.testing.assert_close(kernel.tables[head, axis, entry], vector @ embedding)


def test_entries_begin_with_variance_a_third():
    torch.manual_seed(0)
    tables = EmbeddedTable(2, 50, max_offset=20, embedding_dim=200)().tables
    assert float(tables.detach().var()) == pytest.approx(1 / 3, rel=0.1)


def test_every_parameter_of_an_offset_that_occurs_has_a_gradient():
    module = EmbeddedTable(2, 3, max_offset=3, embedding_dim=4)
    module().log_at(Grid((4, 4)).offsets()).sum().backward()
    for parameter in module.parameters():
        assert parameter.grad is not None
        assert parameter.grad.all()


@pytest.mark.parametrize("argument", ["num_axes", "heads", "max_offset", "embedding_dim"])
def test_a_size_below_one_is_refused(argument: str):
    sizes = {"num_axes": 2, "heads": 3, "max_offset": 3, "embedding_dim": 4, argument: 0}
    with pytest.raises(ValueError, match=f"{argument} is 0"):
        EmbeddedTable(**sizes)
