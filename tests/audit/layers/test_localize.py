import math

import pytest
import torch
from torch import nn

from teka.audit import axis_shifts, square_shifts
from teka.audit.layers import localize, shift_errors
from teka.audit.layers.localize import locate_layers
from teka.audit.model_call import ModelError
from teka.audit.movement import Movement
from teka.models import Performer
from teka.nn import PolyphaseDownsample
from tests.audit.layers.findings import exact_step, find
from tests.raising import raises_for

CIRCULAR = Movement("circular")
SHIFTS = axis_shifts(3)


def images(height=8, width=12, *, channels=2, batch=3, dtype=torch.float64):
    return torch.rand(
        batch, channels, height, width, dtype=dtype, generator=torch.Generator().manual_seed(7)
    )


def circular(channels_in, channels_out, **options):
    return nn.Conv2d(channels_in, channels_out, 3, padding=1, padding_mode="circular", **options)


def make_network(*layers, dtype=torch.float64):
    torch.manual_seed(3)
    for layer in layers:
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    return nn.Sequential(*layers).to(dtype).eval()


class Ramp(nn.Module):
    """Module that adds a ramp along the columns, like absolute positions, with a known error."""

    def forward(self, images):
        return images + 0.5 * torch.arange(images.shape[3], dtype=images.dtype)


def test_circular_convolutions_and_global_mean_have_no_break():
    model = make_network(
        circular(2, 4),
        nn.ReLU(),
        circular(4, 4),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )
    found = locate_layers(model.float(), images(dtype=torch.float32), square_shifts(2), CIRCULAR)
    assert found.first_break is None
    assert not found.breaks
    assert not found.largest_increases()
    assert [finding.name for finding in found.findings] == ["0", "1", "2", "3", "4", "5"]
    assert all(one.error is not None and one.error <= 1e-5 for one in found.findings)
    assert all(one.aliasing_error is None for one in found.findings)
    assert all(exact_step(found, one) == 1 for one in found.findings)


def test_polyphase_sampling_has_no_break():
    sampled = PolyphaseDownsample(2), circular(4, 3), PolyphaseDownsample(2)
    model = make_network(circular(2, 4), *sampled, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    found = locate_layers(model, images(batch=5), square_shifts(3), CIRCULAR)
    assert not found.breaks
    assert {exact_step(found, one) for one in found.findings} == {1}
    assert [one.stride for one in found.findings][:4] == [(1, 1), (2, 2), (2, 2), (4, 4)]


def test_error_of_an_added_ramp_equals_its_closed_form():
    moved = images()
    found = locate_layers(make_network(nn.Identity(), Ramp()), moved, [(0, 2), (1, 0)], CIRCULAR)
    assert (found.first_break, set(found.breaks)) == ("1", {"interior"})
    (one,) = found.findings
    # y_s(u) − y(u − s) is a s for columns from inside the image, and a (s − W) for wrapped columns.
    shape = moved.shape
    squares = 0.25 * (2**2 * 10 + 10**2 * 2) * shape[0] * shape[1] * shape[2]
    size = (moved + 0.5 * torch.arange(12.0, dtype=torch.float64)).square().sum()
    assert one.error == pytest.approx(math.sqrt(squares / size), rel=1e-9)
    # The interior excludes one column at each edge before and after the shift, so no column wraps.
    per_cell = 0.25 * 2**2 / (size / moved.numel())
    assert one.interior_error == pytest.approx(math.sqrt(per_cell), rel=1e-9)
    assert one.added == one.error
    assert one.errors[1] == 0.0


def test_zero_shifts_compare_only_content_from_inside():
    found = locate_layers(
        make_network(nn.ReLU(), circular(2, 3)), images(), SHIFTS, Movement("zero")
    )
    relu, convolution = found.findings
    assert relu.error == 0.0
    assert convolution.interior_error is not None
    assert convolution.interior_error < 1e-12
    assert found.breaks["edge"].name == "1"


def test_interior_of_a_padded_convolution_is_exact_in_all_modes():
    for movement in [
        Movement("reflect"),
        Movement("crop", crop_size=(8, 12)),
        Movement("canvas", canvas_size=(20, 24)),
    ]:
        model = make_network(nn.Conv2d(2, 3, 3, padding=1))
        found = locate_layers(model, images(14, 18), SHIFTS, movement)
        (one,) = found.findings
        assert one.interior_error is not None, movement
        assert one.interior_error < 1e-12, movement
        assert found.seen_size == movement.seen_size((14, 18)), movement


def test_zero_padding_breaks_only_at_the_edge():
    found = locate_layers(
        make_network(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU()), images(), SHIFTS, CIRCULAR
    )
    assert found.first_break is None
    assert (found.breaks["edge"].name, found.breaks["edge"].cause) == ("0", "zero padding")
    assert found.findings[0].border == ((2, 2), (2, 2))
    assert (
        max(found.findings[0].interior_error or 0.0, found.findings[1].interior_error or 0.0)
        < 1e-12
    )


def test_padding_that_spreads_over_the_map_is_not_an_interior_break():
    deep = [nn.Conv2d(3, 3, 3, padding=1) for _ in range(6)]
    model = make_network(nn.Conv2d(2, 3, 3, padding=1), *deep, nn.AdaptiveAvgPool2d(1))
    found = locate_layers(model, images(), SHIFTS, CIRCULAR)
    last = found.findings[-1]
    assert last.interior_error is None
    assert last.error is not None
    assert last.error > found.threshold
    assert set(found.breaks) == {"edge"}


def test_padding_is_an_edge_break_after_a_layer_that_ignores_pixels():
    # The pool ignores the last row and column, so cells near that padding do not depend on edge pixels.
    model = make_network(nn.MaxPool2d(2), nn.Conv2d(2, 3, 3, padding=1))
    found = locate_layers(model, images(19, 23), axis_shifts(4), Movement("zero"))
    assert found.breaks["edge"].name == "1"
    assert found.first_break is None


def test_padding_that_reaches_every_cell_is_an_edge_break():
    found = locate_layers(
        make_network(nn.Conv2d(2, 3, 9, padding=4)), images(8, 8), SHIFTS, CIRCULAR
    )
    assert set(found.breaks) == {"edge"}
    assert find(found, "0").interior_error is None


def test_layer_on_a_flattened_map_breaks_the_interior():
    model = make_network(nn.Conv2d(2, 3, 3, padding=1), nn.Flatten(), nn.Linear(3 * 8 * 12, 5))
    found = locate_layers(model, images(), SHIFTS, CIRCULAR)
    assert found.first_break == "2"
    assert found.breaks["interior"].cause == "separate weights for each position"
    assert found.findings[1].layout == "flattened"


def test_stride_of_two_breaks_only_at_odd_shifts():
    model = make_network(circular(2, 4), nn.ReLU(), circular(4, 4, stride=2), circular(4, 4))
    found = locate_layers(model, images(16, 24), axis_shifts(4), CIRCULAR)
    assert {kind: one.name for kind, one in found.breaks.items()} == {"aliasing": "2"}
    assert found.breaks["aliasing"].cause == "stride 2 without a low-pass filter"
    strided = find(found, "2")
    assert strided.stride == (2, 2)
    assert exact_step(found, strided) == 2
    assert strided.error is not None
    assert strided.error < 1e-12
    by_shift = dict(zip(found.shifts, strided.errors, strict=True))
    assert all((error or 0.0) > 0.05 for shift, error in by_shift.items() if sum(shift) % 2)


def test_only_aliasing_is_measured_without_multiples_of_the_stride():
    found = locate_layers(make_network(circular(2, 4, stride=2)), images(), [(0, 1)], CIRCULAR)
    (one,) = found.findings
    assert (one.error, one.interior_error, one.added) == (None, None, None)
    assert one.aliasing_error is not None


def test_fractional_shifts_are_left_out():
    found = locate_layers(
        make_network(nn.ReLU()), images(), [(0, 0.5), (0, 1)], Movement("fourier")
    )
    assert found.shifts == ((0, 1),)
    assert not found.breaks
    with pytest.raises(ValueError, match="whole pixels"):
        locate_layers(make_network(nn.ReLU()), images(), [(0, 0.5)], Movement("fourier"))


def test_repeated_calls_of_a_module_have_separate_findings():
    relu = nn.ReLU()
    model = make_network(nn.Identity(), relu, Ramp(), relu)
    found = locate_layers(model, images() - 0.5, SHIFTS, CIRCULAR)
    assert [finding.name for finding in found.findings] == ["1", "2", "1 (call 2)"]
    assert find(found, "1 (call 2)").interior_error > 0.1  # pyright: ignore[reportOptionalOperand]


def test_break_between_submodules_belongs_to_their_parent():
    class Placing(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.pos_embed = circular(2, 3), nn.Parameter(torch.rand(1, 3, 8, 12))
            self.dropout, self.last = nn.Dropout(0.1), circular(3, 3)

        def forward(self, images):
            return {"answer": self.last(self.dropout(self.stem(images) + self.pos_embed))}

    model = nn.Sequential(nn.Identity(), Placing()).double().eval()
    found = locate_layers(model, images(), SHIFTS, CIRCULAR)
    assert found.first_break == "1"
    assert found.breaks["interior"].between == ("1.stem", "1.dropout")
    assert found.absolute_embeddings == ("1.pos_embed",)
    assert [finding.name for finding in found.findings] == ["1.stem", "1.last", "1"]


def test_positions_of_uncalled_modules_are_left_out():
    class TwoTowers(nn.Module):
        def __init__(self):
            super().__init__()
            self.text = nn.Sequential(nn.ModuleDict({"position_embedding": nn.Embedding(4, 3)}))
            self.stem, self.pos_embed = circular(2, 3), nn.Parameter(torch.rand(1, 3, 8, 12))

        def forward(self, images):
            return self.stem(images) + self.pos_embed

    model = TwoTowers().double().eval()
    found = locate_layers(model, images(), SHIFTS, CIRCULAR)
    assert found.absolute_embeddings == ("pos_embed",)


def test_only_selected_layers_are_examined():
    model = make_network(circular(2, 4), nn.Identity(), Ramp(), circular(4, 4))
    found = locate_layers(model, images(), SHIFTS, CIRCULAR, layers=["1", "3"])
    assert [finding.name for finding in found.findings] == ["1", "3"]
    assert found.breaks["interior"].between == ("1", "3")
    assert found.skipped == {}


def test_errors_do_not_depend_on_the_batch_size():
    model, moved = make_network(circular(2, 4), Ramp(), circular(4, 4, stride=2)), images(batch=11)
    whole, parts = (
        locate_layers(model, moved, SHIFTS, CIRCULAR, batch_size=size) for size in (200, 3)
    )
    for one, other in zip(whole.findings, parts.findings, strict=True):
        expected = [math.inf if error is None else error for error in other.errors]
        assert [math.inf if error is None else error for error in one.errors] == pytest.approx(
            expected, rel=1e-9
        )


def test_batches_are_small_if_the_layers_have_many_values(monkeypatch):
    sizes = []

    class Layer(nn.Conv2d):
        def forward(self, input):
            sizes.append(len(input))
            return super().forward(input)

    model = nn.Sequential(Layer(1, 4, 3)).eval()
    images, shifts = torch.rand(6, 1, 12, 12), axis_shifts(2)
    expected = locate_layers(model, images, shifts, Movement("circular"))
    num_values = 12 * 12 + 4 * 10 * 10  # the input and the output of the convolution
    monkeypatch.setattr(shift_errors, "MAX_VALUES_AT_ONCE", 3 * num_values)
    sizes.clear()
    found = locate_layers(model, images, shifts, Movement("circular"))
    # The first call traces four images in four copies.
    assert sizes[0] == 4 * 4
    assert max(sizes[1:]) == 3
    assert find(found, "0").error == pytest.approx(find(expected, "0").error, rel=1e-5)


def test_selected_images_are_evenly_spaced(monkeypatch):
    monkeypatch.setattr(localize, "NUM_IMAGES", 2)
    found = locate_layers(make_network(Ramp()), images(batch=9), SHIFTS, CIRCULAR)
    chosen = locate_layers(make_network(Ramp()), images(batch=9)[[0, 8]], SHIFTS, CIRCULAR)
    assert found.num_images == 2
    assert found.findings == chosen.findings


def test_noise_raises_the_threshold():
    class Noisy(nn.Module):
        def forward(self, images):
            return images + 0.01 * torch.randn_like(images)

    found = locate_layers(make_network(Noisy()), images(), SHIFTS, CIRCULAR)
    assert not found.breaks
    assert found.findings[0].noise > 1e-3


def test_half_precision_has_its_own_threshold():
    model = make_network(circular(2, 4), nn.GELU(), circular(4, 4)).bfloat16()
    found = locate_layers(model, images().bfloat16(), SHIFTS, CIRCULAR)
    assert not found.breaks
    assert found.threshold == pytest.approx(4 * torch.finfo(torch.bfloat16).eps)


def test_skipped_modules_have_a_reason():
    class Partial(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.unused, self.folding = nn.ReLU(), nn.ReLU(), nn.Flatten(0, 1)

        def forward(self, images):
            return self.folding(self.stem(images)).unflatten(0, images.shape[:2])

    found = locate_layers(Partial().eval(), images(), SHIFTS, CIRCULAR)
    assert found.skipped["unused"] == "it was not called"
    assert "batch" in found.skipped["folding"]
    assert [finding.name for finding in found.findings] == ["stem", "(model)"]


def test_layer_with_nan_for_shifted_images_is_skipped():
    class Failing(nn.Module):
        def forward(self, images):
            return torch.where(images[..., 4:5, 6:7] == 1, images, torch.nan)

    moved = images()
    moved[..., 4, 6] = 1.0
    found = locate_layers(make_network(nn.ReLU(), Failing()), moved, [(0, 1), (0, -1)], CIRCULAR)
    assert found.skipped["1"] == "it holds NaN or infinity for shifted images"
    assert [finding.name for finding in found.findings] == ["0"]


def test_absolute_positions_break_and_rotary_positions_do_not():
    def perform(position):
        torch.manual_seed(0)
        model = Performer(7, 1, 3, dim=8, depth=2, heads=2, position=position, periodic=True).eval()
        moved = images(7, 7, channels=1, dtype=torch.float32)
        return locate_layers(model, moved, axis_shifts(2), CIRCULAR)

    absolute, rotation = perform("absolute"), perform("rotation")
    assert absolute.first_break == "absolute_position"
    assert absolute.absolute_embeddings == ("absolute_position",)
    assert absolute.breaks["interior"].cause == "absolute position embeddings"
    assert rotation.first_break is None
    assert not rotation.breaks
    assert all(one.error is not None and one.error <= 1e-5 for one in rotation.findings)
    assert {one.prefix_tokens for one in rotation.findings if one.name.startswith("blocks.0")} == {
        1
    }


def test_layers_are_evaluated_in_inference_mode():
    model = make_network(circular(2, 4), nn.ReLU())
    with torch.inference_mode():
        assert locate_layers(model, images(), SHIFTS, CIRCULAR).breaks == {}


@pytest.mark.usefixtures("unchecked_annotations")
def test_invalid_arguments_are_errors():
    model = make_network(circular(2, 4), nn.ReLU())
    for message, change in (
        ("Did you mean '1'", {"layers": ["11"]}),
        (r"layers must be .*got 'stem'", {"layers": ["stem"]}),
        ("shifts", {"shifts": [(0, 0)]}),
        ("shifts must be", {"shifts": [(0, 99)]}),
        ("batch_size", {"batch_size": 0}),
        ("images must have", {"images": images()[0]}),
        ("images must have", {"images": images()[:0]}),
    ):
        arguments = {"images": images(), "shifts": SHIFTS, "movement": CIRCULAR} | change
        with raises_for(message, ValueError, match=message):
            locate_layers(model, **arguments)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="training"):
        locate_layers(model.train(), images(), SHIFTS, CIRCULAR)


def test_error_of_the_model_names_the_batch():
    class Raising(nn.Module):
        def forward(self, images):
            if images.shape[0] > 12:
                raise RuntimeError("too many")
            return images

    model = Raising().eval()
    with pytest.raises(ModelError, match=r"RuntimeError for shifts .*: too many"):
        locate_layers(model, images(), SHIFTS, CIRCULAR)
    with pytest.raises(ModelError, match="unshifted"):
        locate_layers(model, images(batch=8), SHIFTS, CIRCULAR)
