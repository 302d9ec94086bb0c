import pytest
import torch
from torch import Tensor, nn

from reproduction.baselines import SelfAttentionNetwork
from reproduction.study.model_metrics import measure_model
from reproduction.study.study import MeasureSettings, StabilitySettings
from teka.data import Dataset, Split
from teka.models import Performer


class ClassByColumn(nn.Module):
    """Predict class 1 if the ink is right of the center, else class 0."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, images: Tensor) -> Tensor:
        width = images.shape[3]
        right = images[..., width // 2 :].sum(dim=(1, 2, 3)) - images[..., : width // 2].sum(
            dim=(1, 2, 3)
        )
        return self.scale * torch.stack([-right, right], dim=1)


def images_with_ink_at(*columns: int) -> Tensor:
    images = torch.zeros(len(columns), 1, 5, 12)
    for image, column in zip(images, columns, strict=True):
        image[0, 2, column] = 1
    return images


@pytest.fixture
def dataset():
    split = Split(images_with_ink_at(5, 6, 8, 0), torch.tensor([0, 1, 1, 0]))
    return Dataset("made", split, split, split, num_classes=2)


def test_lossless_mode_shifts_only_images_with_margins(dataset):
    measure = MeasureSettings(mode="lossless", shifts=((0, 0), (0, -1), (0, 2)), classes=(1, 0))
    results = measure_model(ClassByColumn().eval(), dataset, measure)
    assert results["accuracy"] == 1.0
    assert results["test_images"] == 4
    # The ink in column 0 would leave, that in column 8 has 12 − 1 − 8 − 1 = 2 columns to its right.
    assert results["shifted_images"] == 3
    assert results["shifts"] == ((0, 0), (0, -1), (0, 2))
    assert results["accuracy_by_shift"] == pytest.approx([1.0, 2 / 3, 2 / 3])
    assert results["classes"] == {
        1: {"shifted_images": 2, "accuracy_by_shift": [1.0, 0.5, 1.0]},
        0: {"shifted_images": 1, "accuracy_by_shift": [1.0, 1.0, 0.0]},
    }
    assert results["worst_shift_accuracy"] == pytest.approx(1 / 3)


def test_images_that_cannot_be_shifted_leave_the_shifts_empty(dataset):
    results = measure_model(
        ClassByColumn().eval(), dataset, MeasureSettings(mode="lossless", shifts=((0, 0), (0, 9)))
    )
    assert results["accuracy"] == 1.0
    assert (results["shifts"], results["accuracy_by_shift"], results["shifted_images"]) == (
        (),
        (),
        0,
    )
    assert "worst_shift_accuracy" not in results


def test_a_class_without_images_is_left_out(dataset):
    results = measure_model(
        ClassByColumn().eval(), dataset, MeasureSettings(mode="circular", classes=(1, 7))
    )
    assert set(results["classes"]) == {1}


def test_unchanged_predictions_are_counted_over_all_or_given_shifts(dataset):
    asked = {
        "circular": StabilitySettings(),
        "zero": StabilitySettings(((0.0, 1.0), (1.0, 0.0)), images=3),
        "crop": StabilitySettings(crop_size=4),
    }
    kept = measure_model(ClassByColumn().eval(), dataset, MeasureSettings(stability=asked))[
        "stability"
    ]
    # Half of the places that ink can have answer as its own, and one of them is its own.
    assert kept["circular"] == {
        "images": 4,
        "shifts": 59,
        "consistency": pytest.approx(29 / 59),
        "unchanged": 0.0,
    }
    assert (kept["zero"]["images"], kept["zero"]["shifts"]) == (3, 2)
    assert set(kept) == {
        "circular",
        "zero",
    }  # the model has no other size, which the window would ask for


def test_crop_of_a_size_that_the_model_rejects_is_not_measured():
    images = torch.rand(4, 1, 8, 8)
    split = Split(images, torch.tensor([0, 1, 1, 0]))
    dataset = Dataset("made", split, split, split, num_classes=2)
    model = Performer((8, 8), 1, 2, dim=4, depth=1, heads=1, patch_size=4, pool="mean").eval()
    for side, modes in ((4, {"crop"}), (6, set())):
        crop = StabilitySettings(((0.0, 1.0),), crop_size=side)
        assert (
            set(
                measure_model(model, dataset, MeasureSettings(stability={"crop": crop}))[
                    "stability"
                ]
            )
            == modes
        )
    with pytest.raises(ValueError, match="multiples of patch_size = 4"):
        model.resize(6)
    assert model.image_size == (8, 8)


def test_the_backend_of_the_layers_is_saved():
    torch.manual_seed(0)
    images = torch.rand(4, 1, 6, 12)
    split = Split(images, torch.tensor([0, 1, 1, 0]))
    dataset = Dataset("made", split, split, split, num_classes=2)
    model = SelfAttentionNetwork((6, 12), 1, 2, dim=4, depth=1, heads=2, backend="toeplitz").eval()
    assert measure_model(model, dataset, MeasureSettings())["backend"] == "toeplitz"
