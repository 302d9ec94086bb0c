import pytest
import torch

from teka.models.images import check_images, read_image_size


@pytest.mark.parametrize(("given", "size"), [(7, (7, 7)), ((5, 7), (5, 7))])
def test_one_number_is_both_sides(given, size):
    assert read_image_size(given) == size


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize("given", [4, (5, 4), (5, 6, 7), (5,)])
def test_a_side_that_is_too_small_or_too_many_sides_are_an_error(given):
    with pytest.raises(ValueError, match=r"image_size is .*, expected height and width of at least 5 pixels"):
        read_image_size(given, smallest=5)


@pytest.mark.usefixtures("as_users_run_it")
def test_images_without_a_batch_are_an_error():
    with pytest.raises(ValueError, match=r"images has shape \(3, 5, 7\), expected \(batch, 3, 5, 7\)"):
        check_images(torch.zeros(3, 5, 7), 3, (5, 7))
