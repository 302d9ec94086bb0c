import dataclasses
import json
import math

import pytest
import torch
from torch import Tensor, nn

from reproduction.baselines import SelfAttentionNetwork
from reproduction.heads.measure import head_grids, heads_of
from reproduction.heads.record import Moment
from reproduction.study import Measure
from reproduction.study.cells import ShiftedClass, Stable
from reproduction.study.measure import measure_heads, measure_model
from reproduction.study.study import Stability
from teka.data import Dataset, Split
from teka.models import Performer
from teka.nn import RelativeKernel


class ClassByColumn(nn.Module):
    """Answers 1 where the ink lies right of the middle, else 0: a model whose answers under shifts are known."""

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
    return Dataset("made", split, split, split, num_classes=2, image_size=(5, 12), in_channels=1)


def test_in_lossless_mode_only_images_with_the_margins_are_shifted(dataset):
    measure = Measure(mode="lossless", shifts=((0, 0), (0, -1), (0, 2)), classes=(1, 0))
    found = measure_model(ClassByColumn().eval(), dataset, measure)
    assert found["accuracy"] == 1.0
    assert found["test_images"] == 4
    # The ink in column 0 would leave, that in column 8 has 12 − 1 − 8 − 1 = 2 columns to its right.
    assert found["shifted_images"] == 3
    assert found["shifts"] == ((0, 0), (0, -1), (0, 2))
    assert found["accuracy_by_shift"] == (1.0, pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert found["classes"] == {
        1: ShiftedClass(2, (1.0, 0.5, 1.0)),
        0: ShiftedClass(1, (1.0, 1.0, 0.0)),
    }
    assert found["worst_shift_accuracy"] == pytest.approx(1 / 3)


def test_images_that_cannot_be_shifted_leave_the_shifts_empty(dataset):
    found = measure_model(
        ClassByColumn().eval(), dataset, Measure(mode="lossless", shifts=((0, 0), (0, 9)))
    )
    assert found["accuracy"] == 1.0
    assert (found["shifts"], found["accuracy_by_shift"], found["shifted_images"]) == ((), (), 0)
    assert found["worst_shift_accuracy"] is None


def test_a_class_without_images_is_left_out(dataset):
    found = measure_model(ClassByColumn().eval(), dataset, Measure(mode="circular", classes=(1, 7)))
    assert set(found["classes"]) == {1}


def test_answers_that_stay_are_counted_over_every_shift_of_the_torus_or_over_those_given(dataset):
    asked = {
        "circular": Stability(),
        "zero": Stability(((0.0, 1.0), (1.0, 0.0)), images=3),
        "crop": Stability(crop_size=4),
    }
    kept = measure_model(ClassByColumn().eval(), dataset, Measure(stability=asked))["stability"]
    # Half of the places that ink can have answer as its own, and one of them is its own.
    assert kept["circular"] == Stable(4, 59, 29 / 59, 0.0)
    assert (kept["zero"].images, kept["zero"].shifts) == (3, 2)
    assert set(kept) == {
        "circular",
        "zero",
    }  # the model has no other size, which the window would ask for


def test_a_window_that_patches_do_not_divide_is_not_measured():
    images = torch.rand(4, 1, 8, 8)
    split = Split(images, torch.tensor([0, 1, 1, 0]))
    dataset = Dataset("made", split, split, split, num_classes=2, image_size=(8, 8), in_channels=1)
    model = Performer((8, 8), 1, 2, dim=4, depth=1, heads=1, patch_size=4, pool="mean").eval()
    for side, modes in ((4, {"crop"}), (6, set())):
        crop = Stability(((0.0, 1.0),), crop_size=side)
        assert (
            set(measure_model(model, dataset, Measure(stability={"crop": crop}))["stability"])
            == modes
        )
    with pytest.raises(ValueError, match="multiples of patch_size = 4"):
        model.resize(6)
    assert model.image_size == (8, 8)


def test_the_backend_of_a_model_whose_layers_choose_one_is_kept():
    torch.manual_seed(0)
    images = torch.rand(4, 1, 6, 12)
    split = Split(images, torch.tensor([0, 1, 1, 0]))
    dataset = Dataset("made", split, split, split, num_classes=2, image_size=(6, 12), in_channels=1)
    model = SelfAttentionNetwork((6, 12), 1, 2, dim=4, depth=1, heads=2, backend="toeplitz").eval()
    assert measure_model(model, dataset, Measure())["backend"] == "toeplitz"


def moment(epoch, **options):
    torch.manual_seed(epoch)
    heads = heads_of(
        SelfAttentionNetwork((10, 14), 1, 3, **{"dim": 4, "depth": 2, "heads": (3, 2), **options})
    )
    return Moment(epoch, {}, heads, head_grids(heads))


def test_the_start_and_the_end_are_kept_layer_by_layer():
    moments = [moment(0), moment(1), moment(2)]
    chance = [dataclasses.replace(grid, window_3=2.34567) for grid in moments[0].grids]
    found = measure_heads(moments, chance)
    assert found.keys() == {"start", "end", "chance"}
    for name, kept in (("start", moments[0]), ("end", moments[2])):
        layers = found[name]
        assert [len(layer["center"]) for layer in layers] == [3, 2]
        for place, layer in enumerate(layers):
            heads = kept.heads.of_layer(place)
            assert layer["offset"] == heads.offset.tolist()
            torch.testing.assert_close(
                torch.tensor(layer["center"]).double(), heads.center, rtol=1e-3, atol=1e-6
            )
            assert layer["grid"]["window_3"] == kept.grids[place].window_3
    assert [layer["window_3"] for layer in found["chance"]] == [2.346, 2.346]
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_a_symmetric_matrix_is_kept_as_three_numbers():
    kept = moment(3, position="generalized_quadratic")
    (layer, _) = measure_heads([kept], ())["end"]
    precision = kept.heads.precision[0]
    assert layer["precision"][0] == pytest.approx(
        [precision[0, 0].item(), precision[1, 0].item(), precision[1, 1].item()], rel=1e-3, abs=1e-6
    )


def test_heads_of_a_table_keep_their_attention():
    kept = moment(4, position="table")
    (layer, _) = measure_heads([kept], ())["end"]
    assert "center" not in layer
    assert layer["mean"][1] == pytest.approx(kept.heads.mean[1].tolist(), rel=1e-3)
    assert layer["covariance"][1][1] == 0.0


def test_what_is_no_number_is_none():
    model = SelfAttentionNetwork((10, 14), 1, 3, dim=4, depth=1, heads=2)
    relative = model.attentions()[0].relative
    assert isinstance(relative, RelativeKernel)
    with torch.no_grad():
        relative.raw_precision[0] = math.nan
    heads = heads_of(model)
    (layer,) = measure_heads([Moment(0, {}, heads, head_grids(heads))], ())["end"]
    assert layer["weight"][0] is None
    assert layer["weight"][1] is not None
    assert layer["grid"]["spread"] is None
