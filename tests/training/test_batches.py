import torch

from teka.data import Split
from teka.training.batches import batches, train_batches


def split(num_images):
    return Split(torch.zeros(num_images, 1, 2, 3), torch.arange(num_images))


def labels(loader):
    return torch.cat([label for _, label in loader]).tolist()


def test_every_image_comes_once_an_epoch_the_last_batch_too():
    loader = train_batches(split(37), batch_size=8, seed=0)
    assert sorted(labels(loader)) == list(range(37))
    assert len(loader) == 5


def test_the_order_is_decided_by_seed_and_epoch_alone():
    first, second = (train_batches(split(37), batch_size=8, seed=3) for _ in range(2))
    torch.manual_seed(0)
    order = labels(first)
    torch.manual_seed(1)
    assert labels(second) == order
    second.sampler.set_epoch(1)
    assert labels(second) != order
    assert labels(train_batches(split(37), batch_size=8, seed=4)) != order


def test_evaluation_takes_every_image_in_order():
    assert labels(batches(split(11), batch_size=4)) == list(range(11))
