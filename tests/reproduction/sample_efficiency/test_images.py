import itertools

import torch

from reproduction.sample_efficiency.images import (
    CANVAS,
    draw_balanced_subset,
    load_centered_on_canvas,
    move_test_images,
)

LABELS = torch.arange(300) % 3


def test_subsets_are_balanced_and_nested():
    subsets = [draw_balanced_subset(LABELS, size, seed=10) for size in (30, 90, 300)]
    for subset in subsets:
        assert LABELS[subset].bincount().tolist() == [len(subset) // 3] * 3
        assert len(set(subset.tolist())) == len(subset)
    for smaller, larger in itertools.pairwise(subsets):
        assert set(smaller.tolist()) < set(larger.tolist())


def test_subsets_depend_on_the_seed():
    first, again, other = (draw_balanced_subset(LABELS, 30, seed) for seed in (10, 10, 11))
    assert torch.equal(first, again)
    assert set(first.tolist()) != set(other.tolist())


def test_images_stand_in_the_middle_of_the_canvas():
    dataset = load_centered_on_canvas("digits", 16, None)
    assert dataset.image_size == (CANVAS, CANVAS)
    assert len(dataset.validation) == 0
    assert not dataset.test.images[:, :, :8].any()
    assert dataset.test.images[:, :, 8:24, 8:24].any()


def test_images_with_a_margin_move_without_loss():
    images = load_centered_on_canvas("digits", 16, None).test.images[:50]
    moved = move_test_images(images, margin=8)
    torch.testing.assert_close(moved.sum(dim=(1, 2, 3)), images.sum(dim=(1, 2, 3)))
    assert not torch.equal(moved, images)


def test_images_that_fill_the_canvas_move_circularly():
    images = torch.rand(20, 1, CANVAS, CANVAS)
    moved = move_test_images(images, margin=0)
    assert torch.equal(moved.flatten(1).sort().values, images.flatten(1).sort().values)


def test_all_models_see_the_same_moved_images():
    images = torch.rand(20, 1, CANVAS, CANVAS)
    first = move_test_images(images, margin=0)
    torch.manual_seed(17)
    assert torch.equal(move_test_images(images, margin=0), first)
