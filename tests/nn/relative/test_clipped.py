import pytest
import torch

from teka import functional
from teka.nn import Clipped


def test_it_gives_the_kernel_with_its_parameters():
    relative = Clipped(5, max_distance=3, ring_width=0.5)
    kernel = relative()
    assert isinstance(kernel, functional.Clipped)
    assert kernel.distance_embedding is relative.distance_embedding
    assert (kernel.max_distance, kernel.ring_width) == (3, 0.5)


def test_it_begins_at_zero_with_the_papers_distance():
    relative = Clipped(5)
    assert torch.equal(relative.distance_embedding, torch.zeros(7, 5))
    assert relative.has_own_heads
    assert relative.uses_query


@pytest.mark.parametrize(("max_distance", "ring_width", "message"), [(0, 1.0, "max_distance is 0"), (3, 0.0, "ring_w")])
def test_bad_input_is_an_error_that_names_it(max_distance: int, ring_width: float, message: str):
    with pytest.raises(ValueError, match=message):
        Clipped(5, max_distance=max_distance, ring_width=ring_width)
