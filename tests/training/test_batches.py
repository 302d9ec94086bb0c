import torch

from teka.data import Split
from teka.training.batches import ShuffledByEpoch, batches, train_batches


def split(num_images):
    return Split(torch.zeros(num_images, 1, 2, 3), torch.arange(num_images))


def labels(loader):
    return torch.cat([label for _, label in loader]).tolist()


def test_every_image_comes_once_an_epoch_the_last_batch_too():
    loader = train_batches(split(37), batch_size=8, seed=0)
    assert sorted(labels(loader)) == list(range(37))
    assert len(loader) == 5


def test_the_order_is_decided_by_seed_and_epoch_alone():
    torch.manual_seed(0)
    order = labels(train_batches(split(37), batch_size=8, seed=3))
    torch.manual_seed(1)
    assert labels(train_batches(split(37), batch_size=8, seed=3)) == order
    assert labels(train_batches(split(37), batch_size=8, seed=4)) != order
    sampler = ShuffledByEpoch(37, seed=3)
    assert list(sampler) == order
    sampler.set_epoch(1)
    assert list(sampler) != order


def test_evaluation_takes_every_image_in_order():
    assert labels(batches(split(11), batch_size=4)) == list(range(11))
