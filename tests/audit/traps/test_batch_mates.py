import torch
from torch import nn

from teka.audit.traps import batch_mates


def model(*, running: bool) -> nn.Module:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(3, track_running_stats=running)
    return nn.Sequential(nn.Conv2d(3, 3, 3), norm, nn.Flatten(), nn.LazyLinear(5)).eval()


def test_batch_normalisation_without_running_statistics_is_found_and_named():
    (trap,) = batch_mates(model(running=False), torch.randn(5, 3, 7, 7), 0.0)
    assert trap.name == "batch statistics"
    assert trap.severity == "invalidates"
    assert "without running statistics (1)" in trap.message


def test_running_statistics_are_no_trap():
    assert batch_mates(model(running=True), torch.randn(5, 3, 7, 7), 0.0) == ()


def test_a_function_that_subtracts_the_mean_of_its_batch_is_found():
    (trap,) = batch_mates(lambda images: images.flatten(1) - images.flatten(1).mean(0), torch.randn(5, 1, 3, 3), 0.0)
    assert "changes by 1 of its size" in trap.message or trap.severity == "invalidates"


def test_one_image_has_no_mates():
    assert batch_mates(model(running=False), torch.randn(1, 3, 7, 7), 0.0) == ()


def test_a_difference_within_the_noise_is_none():
    def noisy(images: torch.Tensor) -> torch.Tensor:
        return images.flatten(1) * (1 + 0.05 * (len(images) == 1))

    assert batch_mates(noisy, torch.randn(5, 1, 3, 3), 0.01) == ()
    assert len(batch_mates(noisy, torch.randn(5, 1, 3, 3), 0.0)) == 1
