import numpy as np
import pytest
import torch
from torch import Tensor, nn

from teka.audit.presets.random_pairs import pair_agreement, whole_numbers


def first_pixel_class(images: Tensor) -> Tensor:
    """Class 1 where the upper left pixel is lit."""
    lit = images[:, 0, 0, 0]
    return torch.stack([1 - lit, lit], dim=1)


def test_draws_are_those_of_numpys_seed():
    draw, random = whole_numbers(-3, 3), np.random.RandomState(5)
    np.random.seed(5)
    for _ in range(20):
        assert draw(random) == tuple(np.random.randint(-3, 3, 2).tolist())


def test_images_of_a_batch_share_a_pair_and_batches_and_passes_do_not():
    places: list[tuple[int, int]] = []

    def move(images: Tensor, place: tuple[int, int]) -> Tensor:
        places.append(place)
        return images

    images = torch.zeros(5, 1, 3, 3)
    agreement = pair_agreement(
        first_pixel_class, images, draw=whole_numbers(0, 7), move=move, passes=2, batch_size=3, seed=1
    )
    random = np.random.RandomState(1)
    assert places == [tuple(random.randint(0, 7, 2).tolist()) for _ in range(8)]
    assert agreement.shape == (2, 5)
    assert agreement.all()


def test_agreement_is_of_the_answers_at_the_two_places():
    torch.manual_seed(0)
    images = (torch.rand(11, 1, 5, 7) > 0.5).float()

    def move(images: Tensor, place: tuple[int, int]) -> Tensor:
        return images.roll(place, (2, 3))

    agreement = pair_agreement(
        first_pixel_class, images, draw=whole_numbers(-2, 2), move=move, passes=3, batch_size=4, seed=2
    )
    random = np.random.RandomState(2)
    for row in range(3):
        for start in (0, 4, 8):
            (down, right), (down_too, right_too) = (random.randint(-2, 2, 2) for _ in range(2))
            batch = images[start : start + 4, 0]
            expected = batch[:, -down % 5, -right % 7] == batch[:, -down_too % 5, -right_too % 7]
            assert agreement[row, start : start + 4].tolist() == expected.tolist()


@pytest.mark.parametrize(("argument", "passes", "batch_size"), [("passes", 0, 1), ("batch_size", 1, 0)])
def test_a_number_below_one_is_refused(argument: str, passes: int, batch_size: int):
    with pytest.raises(ValueError, match=f"{argument} is 0, expected at least 1"):
        pair_agreement(
            first_pixel_class,
            torch.zeros(2, 1, 3, 3),
            draw=whole_numbers(0, 2),
            move=lambda images, _: images,
            passes=passes,
            batch_size=batch_size,
            seed=0,
        )


def test_outputs_that_are_no_logits_are_refused():
    with pytest.raises(ValueError, match="of logits"):
        pair_agreement(
            nn.Identity().eval(),
            torch.zeros(2, 1, 3, 3),
            draw=whole_numbers(0, 2),
            move=lambda images, _: images,
            passes=1,
            batch_size=2,
            seed=0,
        )
