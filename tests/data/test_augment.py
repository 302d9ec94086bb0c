from collections import Counter

import pytest
import torch
from torch import Generator, Tensor

from teka.data import HorizontalFlip, RandomCrop, RandomShift
from teka.grid import Grid

HEIGHT, WIDTH = 5, 7
BACKGROUND = 0.25
TRANSFORMS = [
    RandomShift(2),
    RandomShift((1, 3), mode="circular"),
    RandomShift((1, 3), background=BACKGROUND),
    RandomCrop((HEIGHT, WIDTH), padding=2),
    RandomCrop((4, 3)),
    HorizontalFlip(),
]


def make_images(num_images: int = 19, channels: int = 2) -> Tensor:
    """Images in which every pixel of all is another number."""
    count = num_images * channels * HEIGHT * WIDTH
    return (torch.arange(count, dtype=torch.float64) + 1).reshape(num_images, channels, HEIGHT, WIDTH)


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def shifted(image: Tensor, down: int, right: int, mode: str, background: float) -> Tensor:
    """One image moved pixel by pixel: by the definition."""
    moved = torch.full_like(image, background)
    for row in range(HEIGHT):
        for column in range(WIDTH):
            new_row, new_column = row + down, column + right
            if mode == "circular":
                moved[:, new_row % HEIGHT, new_column % WIDTH] = image[:, row, column]
            elif 0 <= new_row < HEIGHT and 0 <= new_column < WIDTH:
                moved[:, new_row, new_column] = image[:, row, column]
    return moved


@pytest.mark.parametrize("mode", ["zero", "circular"])
@pytest.mark.parametrize(("most_down", "most_right"), [(0, 0), (1, 2), (2, 0), (5, 7)])
def test_every_image_is_moved_by_one_of_the_shifts(mode: str, most_down: int, most_right: int):
    images = make_images()
    moved = RandomShift((most_down, most_right), mode, BACKGROUND)(images, seeded())
    shifts = [(y, x) for y in range(-most_down, most_down + 1) for x in range(-most_right, most_right + 1)]
    for image, found in zip(images, moved, strict=True):
        assert any(torch.equal(found, shifted(image, *shift, mode, BACKGROUND)) for shift in shifts)


def test_a_circular_shift_is_the_grids_roll():
    images = make_images(num_images=1).expand(40, -1, -1, -1)
    moved = RandomShift((1, 2), "circular")(images, seeded())
    grid = Grid((HEIGHT, WIDTH))
    rolled = [grid.roll(images[:1], (y, x))[0] for y in (-1, 0, 1) for x in (-2, -1, 0, 1, 2)]
    assert all(any(torch.equal(image, other) for other in rolled) for image in moved)


def test_all_shifts_come_up_about_equally_often():
    images = make_images(num_images=1, channels=1).expand(6000, -1, -1, -1)
    moved = RandomShift((1, 2), "circular")(images, seeded())
    counts = Counter(moved[:, 0, 0, 0].int().tolist())  # the pixel that came to the corner tells the shift
    assert len(counts) == 3 * 5
    # Each is binomial with mean 400 and standard deviation 19.3.
    assert all(abs(count - 400) < 100 for count in counts.values())


def test_the_padding_and_every_place_of_a_window_come_up_and_no_other():
    image = make_images(num_images=1)
    windows = RandomCrop((4, 3), padding=1, background=BACKGROUND)(image.expand(3000, -1, -1, -1), seeded())
    padded = torch.nn.functional.pad(image, (1, 1, 1, 1), value=BACKGROUND)
    expected = padded.unfold(2, 4, 1).unfold(3, 3, 1)[0].permute(1, 2, 0, 3, 4).flatten(0, 1)
    assert len(expected) == (HEIGHT + 2 - 3) * (WIDTH + 2 - 2)
    found = {tuple(window.flatten().tolist()) for window in windows}
    assert found == {tuple(window.flatten().tolist()) for window in expected}


def test_a_window_of_everything_is_the_image():
    images = make_images()
    assert torch.equal(RandomCrop((HEIGHT, WIDTH))(images, seeded()), images)


def test_mirrored_images_are_flipped_and_the_others_are_not():
    images = make_images(num_images=1).expand(4000, -1, -1, -1)
    flipped = HorizontalFlip(0.25)(images, seeded())
    mirrored = (flipped == images.flip(3)).flatten(1).all(dim=1)
    assert torch.equal(flipped[~mirrored], images[~mirrored])
    # Binomial with mean 1000 and standard deviation 27.4.
    assert abs(int(mirrored.sum()) - 1000) < 140


@pytest.mark.parametrize(("probability", "mirrored"), [(0.0, False), (1.0, True)])
def test_a_certain_flip_is_certain(probability: float, mirrored: bool):
    images = make_images()
    expected = images.flip(3) if mirrored else images
    assert torch.equal(HorizontalFlip(probability)(images, seeded()), expected)


@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
def test_the_same_seed_gives_the_same_and_the_next_draw_another(transform):
    images, generator = make_images(), seeded(3)
    first, second = transform(images, generator), transform(images, generator)
    assert torch.equal(first, transform(images, seeded(3)))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
def test_images_of_a_batch_are_drawn_each_for_itself(transform):
    images = make_images(num_images=1).expand(50, -1, -1, -1)
    assert len(torch.unique(transform(images, seeded()), dim=0)) > 1


@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
def test_torchs_own_generator_and_the_argument_are_left_alone(transform):
    images = make_images()
    before, state = images.clone(), torch.get_rng_state()
    transform(images, seeded())
    assert torch.equal(images, before)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16])
def test_the_type_stays_and_no_images_stay_no_images(transform, dtype: torch.dtype):
    images = make_images().clamp(max=1).to(dtype)
    assert transform(images, seeded()).dtype == dtype
    assert len(transform(images[:0], seeded())) == 0


@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
def test_images_of_another_rank_are_an_error(transform):
    with pytest.raises(ValueError, match=r"images has shape \(2, 5, 7\)"):
        transform(make_images()[0], seeded())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomShift(-1), "max_shift is -1"),
        (lambda: RandomShift((1, -2)), r"max_shift is \(1, -2\)"),
        (lambda: RandomShift(1, "circlar"), "did you mean 'circular'"),
        (lambda: RandomCrop(0), "size is 0"),
        (lambda: RandomCrop(3, padding=-1), "padding is -1"),
        (lambda: HorizontalFlip(1.5), r"probability is 1\.5"),
        (lambda: HorizontalFlip(float("nan")), "probability is nan"),
    ],
)
def test_arguments_out_of_range_are_an_error(make, message: str, as_users_run_it):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_shift_or_a_window_beyond_the_images_is_an_error():
    with pytest.raises(ValueError, match="max_shift is 6, expected at most the images' size, 5 × 7"):
        RandomShift(6)(make_images(), seeded())
    with pytest.raises(ValueError, match=r"size is \(8, 5\), expected at most 7 × 9"):
        RandomCrop((8, 5), padding=1)(make_images(), seeded())
