import torch
from tests.contracts.cases import draw_inputs, draw_mask, relative_change

from teka.functional.kernel.base import kept_mean


def test_it_is_the_mean_of_each_batch_and_head_over_the_kept_tokens():
    vectors, mask = draw_inputs(6)[0], draw_mask(2, 6)
    mean = kept_mean(vectors, mask)
    for batch in range(2):
        expected = vectors[batch][:, mask[batch]].mean(dim=1, keepdim=True)
        assert relative_change(mean[batch], expected) < 1e-12


def test_without_a_mask_it_is_the_mean():
    vectors = draw_inputs(6)[0]
    assert relative_change(kept_mean(vectors, None), kept_mean(vectors, torch.ones(2, 6, dtype=torch.bool))) < 1e-12


def test_what_is_dropped_may_be_nan_and_a_mean_of_nothing_is_zero():
    vectors, mask = draw_inputs(6)[0], draw_mask(2, 6)
    mask[1] = False
    dropped = torch.where(mask[:, None, :, None], vectors, torch.nan)
    assert torch.equal(kept_mean(dropped, mask), kept_mean(vectors, mask))
    assert (kept_mean(dropped, mask)[1] == 0).all()
