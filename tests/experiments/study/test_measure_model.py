import pytest
import torch
from torch import Tensor, nn

from teka.data import Dataset, Split
from teka.experiments.study.measure import Measure
from teka.experiments.study.measure_model import measure_model
from teka.models import SelfAttentionNetwork


class ClassByColumn(nn.Module):
    """Answers 1 where the ink lies right of the middle, else 0: a model whose answers under shifts are known."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, images: Tensor) -> Tensor:
        width = images.shape[3]
        right = images[..., width // 2 :].sum(dim=(1, 2, 3)) - images[..., : width // 2].sum(dim=(1, 2, 3))
        return self.scale * torch.stack([-right, right], dim=1)


def images_with_ink_at(*columns: int) -> Tensor:
    images = torch.zeros(len(columns), 1, 5, 12)
    for image, column in zip(images, columns, strict=True):
        image[0, 2, column] = 1
    return images


@pytest.fixture
def dataset():
    split = Split(images_with_ink_at(5, 6, 8, 0), torch.tensor([0, 1, 1, 0]))
    return Dataset("made", split, split, split, num_classes=2, image_size=(5, 12), in_channels=1)


def test_in_lossless_mode_only_images_with_the_margins_are_shifted(dataset):
    measure = Measure(mode="lossless", shifts=((0, 0), (0, -1), (0, 2)), classes=(1, 0))
    found = measure_model(ClassByColumn().eval(), dataset, measure)
    assert found["accuracy"] == 1.0
    assert found["test_images"] == 4
    # The ink in column 0 would leave, that in column 8 has 12 − 1 − 8 − 1 = 2 columns to its right.
    assert found["shifted_images"] == 3
    assert found["shifts"] == [[0, 0], [0, -1], [0, 2]]
    assert found["accuracy_by_shift"] == [1.0, pytest.approx(2 / 3), pytest.approx(2 / 3)]
    assert found["classes"] == {
        "1": {"shifted_images": 2, "accuracy_by_shift": [1.0, 0.5, 1.0]},
        "0": {"shifted_images": 1, "accuracy_by_shift": [1.0, 1.0, 0.0]},
    }
    assert found["worst_shift_accuracy"] == pytest.approx(1 / 3)


def test_images_that_cannot_be_shifted_leave_the_shifts_empty(dataset):
    found = measure_model(ClassByColumn().eval(), dataset, Measure(mode="lossless", shifts=((0, 0), (0, 9))))
    assert found["accuracy"] == 1.0
    assert (found["shifts"], found["accuracy_by_shift"], found["shifted_images"]) == ([], [], 0)
    assert found["worst_shift_accuracy"] is None


def test_a_class_without_images_is_left_out(dataset):
    found = measure_model(ClassByColumn().eval(), dataset, Measure(mode="circular", classes=(1, 7)))
    assert isinstance(found["classes"], dict)
    assert set(found["classes"]) == {"1"}


def test_the_backend_of_a_model_whose_layers_choose_one_is_kept():
    torch.manual_seed(0)
    images = torch.rand(4, 1, 6, 12)
    split = Split(images, torch.tensor([0, 1, 1, 0]))
    dataset = Dataset("made", split, split, split, num_classes=2, image_size=(6, 12), in_channels=1)
    model = SelfAttentionNetwork((6, 12), 1, 2, dim=4, depth=1, heads=2, backend="toeplitz").eval()
    assert measure_model(model, dataset, Measure())["backend"] == "toeplitz"
