import itertools
import os

import pytest
import torch
from PIL import Image

from teka.data import Split, load
from teka.training.batches import MicroBatchSampler, make_evaluation_loader, make_train_loader


def make_split(num_images):
    return Split(torch.zeros(num_images, 1, 2, 3), torch.arange(num_images))


def all_labels(loader):
    return torch.cat([label for _, label, *_ in loader]).tolist()


def test_every_image_is_in_one_batch_of_an_epoch():
    loader = make_train_loader(make_split(37), batch_size=8, seed=0)
    assert sorted(all_labels(loader)) == list(range(37))
    assert len(loader) == 5


def test_order_depends_only_on_seed_and_epoch():
    torch.manual_seed(0)
    order = all_labels(make_train_loader(make_split(37), batch_size=8, seed=3))
    torch.manual_seed(1)
    assert all_labels(make_train_loader(make_split(37), batch_size=8, seed=3)) == order
    assert all_labels(make_train_loader(make_split(37), batch_size=8, seed=4)) != order
    sampler = MicroBatchSampler(num_images=37, batch_size=8, seed=3)
    assert [index for micro_batch in sampler for index in micro_batch.indices] == order
    sampler.set_epoch(1)
    assert [index for micro_batch in sampler for index in micro_batch.indices] != order


@pytest.mark.parametrize("num_images", [7, 8, 11, 37])
def test_weighted_mean_over_micro_batches_is_the_mean_over_the_batch(num_images):
    whole = list(MicroBatchSampler(num_images=num_images, batch_size=7, seed=5))
    assert [part.weight for part in whole] == [1.0] * len(whole)
    for world_size, accumulate in itertools.product((1, 2), (1, 2, 3)):
        divided = {"accumulate": accumulate, "world_size": world_size}
        shares = [
            list(
                MicroBatchSampler(num_images=num_images, batch_size=7, seed=5, rank=rank, **divided)
            )
            for rank in range(world_size)
        ]
        assert {len(share) for share in shares} == {accumulate * len(whole)}, divided
        for step, (indices, _) in enumerate(whole):
            parts = [
                share[accumulate * step + turn] for share in shares for turn in range(accumulate)
            ]
            counted = [index for part in parts if part.weight for index in part.indices]
            assert sorted(counted) == sorted(indices), divided
            # Lightning takes the mean over parts and processes of weight × mean loss.
            means = [part.weight * sum(part.indices) / len(part.indices) for part in parts]
            assert sum(means) / len(means) == pytest.approx(sum(indices) / len(indices)), divided


def test_processes_share_the_images_of_an_evaluation():
    assert all_labels(
        make_evaluation_loader(make_split(11), batch_size=4, rank=0, world_size=2)
    ) == list(range(0, 11, 2))
    assert all_labels(
        make_evaluation_loader(make_split(11), batch_size=4, rank=1, world_size=2)
    ) == list(range(1, 11, 2))


def test_evaluation_has_every_image_in_order():
    assert all_labels(make_evaluation_loader(make_split(11), batch_size=4)) == list(range(11))


def test_streamed_pictures_give_the_same_batches_as_images_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    for number in range(11):
        folder = tmp_path / "ab"[number % 2]
        folder.mkdir(exist_ok=True)
        Image.new("L", (4, 3), 20 * number).save(folder / f"{number}.png")
    memory = load(str(tmp_path), validation_size=2).train
    streamed = load(str(tmp_path), validation_size=2, stream=True).train
    loaders = [
        [
            make_train_loader(split, batch_size=3, seed=0),
            make_evaluation_loader(split, batch_size=4),
        ]
        for split in (memory, streamed)
    ]
    assert all(loader.num_workers == 2 for loader in loaders[1])  # one for each allowed core
    for first, second in zip(*loaders, strict=True):
        for expected, batch in zip(first, second, strict=True):
            assert torch.equal(batch[0], expected[0])
            assert torch.equal(batch[1], expected[1])
            assert batch[2:] == expected[2:]
