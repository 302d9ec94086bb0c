from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

from teka.data import HorizontalFlip, Normalize, RandomShift, lossless_selection
from teka.grid import Grid

HEIGHT, WIDTH = 5, 7
TRANSFORMS = [RandomShift(2), RandomShift(2, mode="circular"), HorizontalFlip()]
COLORED = torch.rand(
    11, 3, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
) * torch.tensor([1.0, 0.3, 0.1], dtype=torch.float64).view(3, 1, 1)
EXTENTS = Path(__file__).with_name("column_extents.npz")  # made by write_column_extents.py
COUNTS = [("mnist", 1135, 854), ("fashion-mnist", 1000, 791)]


def make_images(num_images: int = 19, channels: int = 2) -> Tensor:
    """Return images whose pixels are all different."""
    count = num_images * channels * HEIGHT * WIDTH
    return (torch.arange(count, dtype=torch.float64) + 1).reshape(
        num_images, channels, HEIGHT, WIDTH
    )


def make_generator(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def shift_by_definition(image: Tensor, down: int, right: int, mode: str) -> Tensor:
    """Return an image shifted pixel by pixel, as the definition says."""
    moved = torch.zeros_like(image)
    for row in range(HEIGHT):
        for column in range(WIDTH):
            new_row, new_column = row + down, column + right
            if mode == "circular":
                moved[:, new_row % HEIGHT, new_column % WIDTH] = image[:, row, column]
            elif 0 <= new_row < HEIGHT and 0 <= new_column < WIDTH:
                moved[:, new_row, new_column] = image[:, row, column]
    return moved


def test_every_image_is_shifted_by_one_of_the_allowed_shifts():
    for mode in ["zero", "circular"]:
        for most in (0, 1, 5):
            images = make_images()
            moved = RandomShift(most, mode)(images, make_generator())
            shifts = [(y, x) for y in range(-most, most + 1) for x in range(-most, most + 1)]
            for image, found in zip(images, moved, strict=True):
                assert any(
                    torch.equal(found, shift_by_definition(image, *shift, mode)) for shift in shifts
                )


def test_all_shifts_are_equally_frequent():
    images = make_images(num_images=1, channels=1).expand(6000, -1, -1, -1)
    moved = RandomShift(2, "circular")(images, make_generator())
    counts = Counter(
        moved[:, 0, 0, 0].int().tolist()
    )  # the value in the corner identifies the shift
    assert len(counts) == 5 * 5
    # Each count is binomial with mean 240 and standard deviation 15.2.
    assert all(abs(count - 240) < 75 for count in counts.values())


def test_a_fraction_of_the_images_is_flipped():
    images = make_images(num_images=1).expand(4000, -1, -1, -1)
    flipped = HorizontalFlip(0.25)(images, make_generator())
    mirrored = (flipped == images.flip(3)).flatten(1).all(dim=1)
    assert torch.equal(flipped[~mirrored], images[~mirrored])
    # Binomial with mean 1000 and standard deviation 27.4.
    assert abs(int(mirrored.sum()) - 1000) < 140


def test_flips_with_probability_0_or_1_are_deterministic():
    for probability, mirrored in [(0.0, False), (1.0, True)]:
        images = make_images()
        expected = images.flip(3) if mirrored else images
        assert torch.equal(HorizontalFlip(probability)(images, make_generator()), expected)


def test_the_seed_determines_the_draws():
    for transform in TRANSFORMS:
        images, generator = make_images(), make_generator(3)
        first, second = transform(images, generator), transform(images, generator)
        assert torch.equal(first, transform(images, make_generator(3)))
        assert not torch.equal(first, second)


def test_each_image_of_a_batch_has_its_own_draw():
    for transform in TRANSFORMS:
        images = make_images(num_images=1).expand(50, -1, -1, -1)
        assert len(torch.unique(transform(images, make_generator()), dim=0)) > 1


def test_the_global_generator_and_the_argument_are_unchanged():
    for transform in TRANSFORMS:
        images = make_images()
        before, state = images.clone(), torch.get_rng_state()
        transform(images, make_generator())
        assert torch.equal(images, before)
        assert torch.equal(torch.get_rng_state(), state)


def test_dtype_is_kept_and_empty_batches_are_accepted():
    for transform in TRANSFORMS:
        for dtype in [torch.uint8, torch.bfloat16]:
            images = make_images().clamp(max=1).to(dtype)
            assert transform(images, make_generator()).dtype == dtype
            assert len(transform(images[:0], make_generator())) == 0


def test_images_of_another_rank_are_an_error():
    for transform in TRANSFORMS:
        with pytest.raises(ValueError, match=r"images must have .*got \(2, 5, 7\)"):
            transform(make_images()[0], make_generator())


def test_arguments_out_of_range_are_an_error(unchecked_annotations):
    for make, message in [
        (lambda: RandomShift(-1), r"max_shift must be .*got -1"),
        (lambda: RandomShift(1, "circlar"), "Did you mean 'circular'"),
        (lambda: HorizontalFlip(1.5), r"probability must be .*got 1\.5"),
        (lambda: HorizontalFlip(float("nan")), r"probability must be .*got nan"),
    ]:
        with pytest.raises(ValueError, match=message):
            make()


def test_a_shift_beyond_the_image_size_is_an_error():
    with pytest.raises(ValueError, match=r"max_shift must be at most the image size, 5 × 7.*got 6"):
        RandomShift(6)(make_images(), make_generator())


def test_normalized_channels_have_mean_0_and_variance_1():
    normalised = Normalize.from_images(COLORED)(COLORED)
    torch.testing.assert_close(
        normalised.mean(dim=(0, 2, 3)), torch.zeros(3).double(), atol=1e-12, rtol=0
    )
    torch.testing.assert_close(
        normalised.square().mean(dim=(0, 2, 3)), torch.ones(3).double(), atol=1e-12, rtol=0
    )


def test_normalize_is_affine_in_each_channel():
    normalize = Normalize(mean=(0.5, 0.25, 0.0), deviation=(0.5, 2.0, 1.0))
    found = normalize(COLORED)
    torch.testing.assert_close(found[:, 0], 2 * COLORED[:, 0] - 1)
    torch.testing.assert_close(found[:, 1], COLORED[:, 1] / 2 - 0.125)
    torch.testing.assert_close(found[:, 2], COLORED[:, 2])


def test_normalize_does_not_depend_on_the_batch():
    normalize = Normalize.from_images(COLORED)
    assert torch.equal(normalize(COLORED)[3:5], normalize(COLORED[3:5]))
    assert normalize(COLORED[:0]).shape == (0, 3, 5, 7)


def test_normalize_keeps_the_dtype_and_the_argument():
    images = COLORED.float()
    before = images.clone()
    assert Normalize.from_images(images)(images).dtype == torch.float32
    assert torch.equal(images, before)


def test_invalid_mean_or_deviation_is_an_error():
    for mean, deviation, message in [
        ((0.0, 0.0), (1.0,), "deviation must be"),
        ((), (), "mean must be"),
        ((0.0,), (0.0,), "deviation must be"),
        ((0.0,), (float("inf"),), "deviation must be"),
        ((float("nan"),), (1.0,), "mean must be"),
    ]:
        with pytest.raises(ValueError, match=message):
            Normalize(mean, deviation)


def test_invalid_images_are_an_error():
    with pytest.raises(
        ValueError, match=r"images must have shape \(batch, 3, height, width\).*got \(11, 2, 5, 7\)"
    ):
        Normalize.from_images(COLORED)(COLORED[:, :2])
    with pytest.raises(ValueError, match=r"images must be .*got torch\.uint8"):
        Normalize.from_images(COLORED)(COLORED.byte())
    with pytest.raises(ValueError, match=r"images must be .*got torch\.uint8"):
        Normalize.from_images(COLORED.byte())
    with pytest.raises(ValueError, match=r"images must have .*got \(0, 3, 5, 7\)"):
        Normalize.from_images(COLORED[:0])
    with pytest.raises(ValueError, match="deviation must be"):
        Normalize.from_images(torch.ones(2, 1, 3, 5))


def images_from_columns(first: torch.Tensor, last: torch.Tensor, width: int) -> torch.Tensor:
    """Make blank images of two channels with a faint pixel in the first and in the last column."""
    index = torch.arange(len(first))
    images = torch.zeros(len(first), 2, 5, width)
    images[index, 0, index % 5, first.long()] = 1 / 255
    images[index, 1, (index + 2) % 5, last.long()] = 1 / 255
    return images


def published_images(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    with np.load(EXTENTS, allow_pickle=False) as file:
        first, last, labels = (
            torch.from_numpy(file[f"{name}/{part}"]) for part in ("first", "last", "label")
        )
    return images_from_columns(first, last, width=32), labels.long()


def test_selected_image_has_more_blank_columns_than_the_margin():
    first, last = torch.tensor([3, 0, 1, 12, 2]), torch.tensor([4, 12, 11, 12, 10])
    images = images_from_columns(first, last, width=13)
    for margin, expected in ((1, [0, 4]), (2, [0]), (3, [])):
        mask = lossless_selection(images, torch.zeros(5), class_index=0, margin=margin)
        assert mask.nonzero().flatten().tolist() == expected
    assert lossless_selection(torch.zeros(1, 1, 3, 7), torch.ones(1), margin=6).all()


def test_the_selection_has_the_counts_of_the_paper():
    for name, of_class, selected in COUNTS:
        images, labels = published_images(name)
        assert len(labels) == 10_000
        assert (labels == 1).sum() == of_class
        mask = lossless_selection(images, labels)
        assert mask.sum() == selected
        assert (labels[mask] == 1).all()


def test_rolling_a_selected_image_wraps_only_zeros():
    for name, *_ in COUNTS:
        images, labels = published_images(name)
        chosen = images[lossless_selection(images, labels)]
        grid = Grid(tuple(chosen.shape[2:]))
        for shift in range(-8, 9):
            rolled = grid.roll(chosen, shift)
            entered = rolled[..., :shift] if shift > 0 else rolled[..., 32 + shift :]
            assert not entered.any()


def test_selection_without_class_index_has_all_classes():
    images, labels = published_images("fashion-mnist")
    one_by_one = torch.stack(
        [lossless_selection(images, labels, class_index=index, margin=3) for index in range(10)]
    )
    assert torch.equal(
        one_by_one.any(dim=0), lossless_selection(images, labels, class_index=None, margin=3)
    )


def test_selection_margin_is_exact():
    for margin in [0, 1, 5, 9]:
        first = torch.tensor([margin, margin + 1, margin + 1])
        last = 22 - torch.tensor([margin + 1, margin + 1, margin])
        mask = lossless_selection(
            images_from_columns(first, last, 23), torch.ones(3, dtype=torch.long), margin=margin
        )
        # A margin of 0 allows no shift, so every image is selected.
        assert mask.tolist() == ([True] * 3 if margin == 0 else [False, True, False])


def test_invalid_selection_arguments_are_an_error():
    images, labels = torch.zeros(3, 1, 5, 7), torch.ones(3, dtype=torch.long)
    with pytest.raises(ValueError, match=r"labels must have shape \(3,\).*got \(2,\)"):
        lossless_selection(images, labels[:2])
    with pytest.raises(ValueError, match=r"images must have .*got \(3, 5, 7\)"):
        lossless_selection(images[:, 0], labels)
    with pytest.raises(ValueError, match=r"margin must be .*got -1"):
        lossless_selection(images, labels, margin=-1)
    with pytest.raises(ValueError, match=r"class_index must be .*got -1"):
        lossless_selection(images, labels, class_index=-1)
