import copy
import json
import warnings
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from jaxtyping import Float
from tests.contracts.cases import PAIRS, Case
from torch import Tensor

import teka
from teka import Grid
from teka.functional import Positive, Rotary, SquaredRelu
from teka.functional.attention import estimator_report
from teka.functional.relative.rotary import LENGTH_SHARE
from teka.nn import Attention, RandomFeatures
from teka.nn.diagnostics.diagnose import MEASURED_TOKENS
from teka.nn.diagnostics.report import features_for


def build(seed: int = 0, **options: Any) -> Attention:
    torch.manual_seed(seed)
    options = {"relative": None, **options}
    return Attention(options.pop("dim", 8), options.pop("heads", 2), **options).eval()


def draw_tokens(num_tokens: int, dim: int = 8, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(2, num_tokens, dim, generator=torch.Generator().manual_seed(1))


# Every content kernel, every relative kernel and every joint form; that all pairs are equivariant the contracts hold.
DIAGNOSED = [
    pair
    for pair in PAIRS
    if pair.relative in (None, "rotation_joint")
    or pair.kernel in ("squared_relu", "positive", "hedgehog")
]


@pytest.mark.parametrize("pair", DIAGNOSED, ids=str)
def test_every_layer_is_diagnosed_and_all_but_the_joint_form_are_equivariant(
    pair: Case, as_users_run_it: None
):
    layer = build(kernel=pair.kernel, relative=pair.relative)
    diagnosis = teka.diagnose(layer, draw_tokens(1 + 15), Grid((3, 5)), num_prefix_tokens=1)
    assert diagnosis.shift is not None
    assert diagnosis.shift.noise_floor == 0
    joint = pair.relative == "rotation_joint" and pair.kernel != "softmax"
    assert (diagnosis.shift.without_rounding < 1e-9) != joint
    assert (diagnosis.shift.maximum > 0.01) == joint
    assert any("rotation_joint" in sentence for sentence in diagnosis.advice) >= joint
    assert sum(group.num_heads for group in diagnosis.groups) == 2
    for group in diagnosis.groups:
        assert max(group.rounding.values(), default=0.0) < 1e-3
        assert group.size.times_the_values <= group.size.largest_gain * (1 + 1e-6)
        assert group.size.bound is None or group.size.largest_gain <= group.size.bound * (1 + 1e-9)
        assert (group.size.bound is None) == (group.kernel == "trigonometric")
    assert json.loads(json.dumps(diagnosis.to_dict(), allow_nan=False))["num_tokens"] == 16


@pytest.mark.parametrize("relative", [None, "clipped", "quadratic", "table", "fourier", "rotary"])
def test_a_torus_is_rolled_and_a_bounded_axis_is_not(relative: str | None):
    for periodic in ((True, True), (False, True)):
        grid = Grid((5, 7), periodic=periodic)
        shift = teka.diagnose(
            build(relative=relative), draw_tokens(35), grid, shifts=[(1, 2), (-2, 3)]
        ).shift
        assert shift is not None
        assert set(shift.by_shift) == {(1, 2), (-2, 3)}
        assert shift.how.startswith("rolled" if all(periodic) else "on a larger grid")
        assert shift.without_rounding < 1e-12, periodic


def test_shifts_are_measured_with_masks_and_on_ragged_samples():
    mask = torch.arange(1 + 35) < torch.tensor([[36], [17]])
    shift = teka.diagnose(
        build(relative="rotation", kernel="optimal"),
        draw_tokens(36),
        Grid((5, 7)),
        num_prefix_tokens=1,
        key_mask=mask,
    ).shift
    assert shift is not None
    assert shift.without_rounding < 1e-12


@pytest.mark.parametrize("batch", [(), (2,)])
def test_bare_positions_are_shifted_by_adding(batch: tuple[int, ...]):
    positions = 9 * torch.rand(*batch, 13, 3, generator=torch.Generator().manual_seed(0))
    for relative, shifts in zip(
        ("quadratic", "fourier", "rotary", "rotation"), 2 * (None, [(1.5, -0.25, 3)]), strict=True
    ):
        layer = build(relative=relative, num_axes=3)
        shift = teka.diagnose(layer, draw_tokens(13), positions=positions, shifts=shifts).shift
        assert shift is not None
        assert shift.how == "added to the positions"
        assert shift.without_rounding < 1e-12, relative
    joint = build(relative="rotation_joint", kernel="positive", num_axes=3)
    shift = teka.diagnose(joint, draw_tokens(13), positions=positions).shift
    assert shift is not None
    assert shift.without_rounding > 0.01


def test_a_causal_layer_moves_along_bounded_axes_only():
    layer = build(causal=True, relative="fourier", num_axes=2)
    bounded = teka.diagnose(layer, draw_tokens(35), Grid((5, 7))).shift
    assert bounded is not None
    assert bounded.without_rounding < 1e-12
    mixed = teka.diagnose(layer, draw_tokens(35), Grid((5, 7), periodic=(False, True))).shift
    assert mixed is not None
    assert all(step[1] == 0 for step in mixed.by_shift)
    assert mixed.without_rounding < 1e-12
    torus = Grid((5, 7), periodic=True)
    assert teka.diagnose(layer, draw_tokens(35), torus).shift is None
    with pytest.raises(ValueError, match="0 along periodic axes"):
        teka.diagnose(layer, draw_tokens(35), torus, shifts=[(0, 1)])


def test_the_errors_of_features_are_those_of_the_report():
    layer = build(dim=24, heads=3, kernel="positive", num_features=11)
    tokens = draw_tokens(29, 24, scale=2.0)
    (group,) = teka.diagnose(layer, tokens, Grid(29)).groups
    with torch.no_grad():
        query, key, value = layer.project(tokens)
    assert query is not None
    assert key is not None
    assert isinstance(layer.kernel, RandomFeatures)
    assert group.estimator is not None
    assert group.estimator.num_features == 11
    total = estimator_report(query, key, value, layer.kernel())
    assert group.estimator.total.error == pytest.approx(total.error, rel=1e-9)
    assert group.estimator.total.spread == pytest.approx(total.spread, rel=1e-9)
    for head, report in enumerate(group.estimator.by_head):
        heads = slice(head, head + 1)
        expected = estimator_report(query[:, heads], key[:, heads], value[:, heads], layer.kernel())
        assert report.error == pytest.approx(expected.error, rel=1e-9)
        assert report.error_of_mean == pytest.approx(expected.error_of_mean, rel=1e-9)
    assert group.query_norm is not None
    assert group.query_norm[1] == pytest.approx(float(query[:, 1].norm(dim=-1).mean()), rel=1e-6)


def median_error(layer: Attention, tokens: Tensor, grid: Grid | None = None) -> float:
    """Median of the estimator's error over draws: now and then a draw errs by far more than the others."""
    errors = []
    for seed in range(7):
        torch.manual_seed(seed)
        teka.nn.redraw_projections(layer)
        (group,) = teka.diagnose(layer, tokens, grid).groups
        assert group.estimator is not None
        errors.append(group.estimator.total.error)
    return sorted(errors)[3]


def test_the_number_of_features_that_it_names_brings_the_error_near_a_tenth():
    options = {"dim": 16, "heads": 2, "kernel": "positive"}
    layer = build(**options, num_features=6)
    tokens = draw_tokens(200, 16, 0.7)
    error = median_error(layer, tokens)
    assert error > 0.2
    more = build(**options, num_features=features_for(error, 6))
    more.load_state_dict(
        {name: tensor for name, tensor in layer.state_dict().items() if "kernel." not in name},
        False,
    )
    # Heavy tails: it falls more slowly than with the root, so that the number is one to begin with.
    assert median_error(more, tokens) == pytest.approx(0.1, rel=0.4)


@pytest.mark.parametrize(
    ("kernel", "relative", "truth"),
    [
        ("positive", None, "softmax"),
        ("hyperbolic", "rotation", "softmax × rotation"),
        ("optimal", "rotation_joint", "softmax × rotation_joint"),
        ("trigonometric", "fourier", "softmax × fourier"),
        ("positive", "rotary", "softmax"),
    ],
)
def test_more_features_come_nearer_to_the_truth_that_it_names(
    kernel: str, relative: str | None, truth: str, as_users_run_it: None
):
    errors, tokens, grid = [], draw_tokens(15, scale=0.7), Grid((3, 5))
    for num_features in (32, 512):
        layer = build(kernel=kernel, relative=relative, num_features=num_features)
        (group,) = teka.diagnose(layer, tokens, grid).groups
        assert group.estimator is not None
        assert group.estimator.truth == truth
        errors.append(median_error(layer, tokens, grid))
    assert errors[1] < errors[0] / 2  # a fourth where it falls with the root of the number


def test_features_of_rings_are_compared_with_the_exact_rings():
    errors = []
    for num_features in (8, 4096):
        layer = build(relative="clipped_features", num_features=num_features)
        assert layer.relative is not None
        torch.nn.init.normal_(
            layer.relative.get_parameter("distance_embedding"), generator=torch.Generator()
        )
        content, rings = teka.diagnose(layer, draw_tokens(35), Grid((5, 7))).groups
        assert content.estimator is None
        assert rings.estimator is not None
        assert rings.estimator.truth == "constant × clipped"
        errors.append(rings.estimator.total.error)
    assert errors[1] < errors[0] / 3


def test_draws_of_fixed_norm_are_said_to_be_biased():
    for projection in ("orthogonal", "fixed_norm"):
        layer = build(kernel=RandomFeatures("positive", 4, num_features=4, projection=projection))
        diagnosis = teka.diagnose(layer, draw_tokens(35, scale=3.0))
        assert diagnosis.groups[0].estimator is not None
        assert diagnosis.groups[0].estimator.is_biased == (projection == "fixed_norm")
        assert any("fixed norm" in sentence for sentence in diagnosis.advice) == (
            projection == "fixed_norm"
        )


def test_a_large_grid_is_measured_on_a_block_that_holds_kept_cells():
    grid = Grid((70, 61), periodic=True)
    mask = torch.zeros(1, 1 + grid.num_tokens, dtype=torch.bool)
    mask[0, -70:] = True
    tokens = draw_tokens(1 + grid.num_tokens)[:1]
    diagnosis = teka.diagnose(
        build(relative="rotation", kernel="positive"),
        tokens,
        grid,
        num_prefix_tokens=1,
        key_mask=mask,
        shifts=[(3, 5)],
    )
    assert "1,025 of the tokens, a block (32, 32) of (70, 61)" in diagnosis.measured
    assert diagnosis.groups[0].estimator is not None
    assert diagnosis.groups[0].estimator.total.error > 0
    long = teka.diagnose(build(kernel="positive"), draw_tokens(MEASURED_TOKENS + 77), shifts=None)
    assert long.measured == f"measured on 2 of the samples and {MEASURED_TOKENS:,} of the tokens"
    assert long.shift is None
    assert "not measured" in str(long)


def test_nothing_changes_and_the_second_time_it_is_the_same():
    layer = build(kernel="positive", relative="rotation_joint")
    assert isinstance(layer.kernel, RandomFeatures)
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    tokens = draw_tokens(35).requires_grad_()
    state = torch.get_rng_state()
    one, two = (teka.diagnose(layer, tokens, Grid((5, 7))) for _ in range(2))
    assert one == two
    assert str(one) == str(two)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()
    assert layer.kernel.is_unchecked
    assert not layer.training
    assert tokens.grad is None
    assert all(
        parameter.grad is None and parameter.requires_grad for parameter in layer.parameters()
    )
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.state_dict().items())
    assert layer.get_parameter("value.weight").dtype == torch.float32


@dataclass(frozen=True)
class Flat(Positive):
    """Features that do not look at what they are features of."""

    def query_exponent(
        self, query: Float[Tensor, "batch heads queries dim"], *, scale: float
    ) -> Float[Tensor, "batch heads queries features"]:
        return torch.zeros_like(super().query_exponent(query, scale=scale))


class FlatFeatures(RandomFeatures):
    def forward(self) -> Flat:
        return Flat(self.projection)


def test_it_reports_a_collapse_and_does_not_warn():
    torch.manual_seed(0)
    layer = build(kernel=FlatFeatures("positive", 4, num_features=9))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        diagnosis = teka.diagnose(layer, draw_tokens(35))
    assert diagnosis.collapsed
    assert diagnosis.to_dict()["collapsed"] is True
    assert (
        "positive has collapsed in heads 0, 1: the output is the mean of the values"
        in diagnosis.advice[0]
    )
    assert not teka.diagnose(build(kernel="positive"), draw_tokens(35)).collapsed


NEAR_BLANK = torch.randn(1, 1, 32, generator=torch.Generator().manual_seed(2)) + 1e-3 * torch.randn(
    2, 35, 32, generator=torch.Generator().manual_seed(3)
)


@pytest.mark.parametrize("normalizer", ["features", "mixed", None])
def test_a_near_blank_image_is_well_with_every_denominator_but_that_of_features(
    normalizer: str | None,
):
    layer = build(2, dim=32, heads=4, relative="rotary", rotary_normalizer=normalizer).double()
    tokens, grid, mask = (
        NEAR_BLANK.double(),
        Grid((5, 7)),
        torch.rand(2, 35, generator=torch.Generator()) < 0.8,
    )
    diagnosis = teka.diagnose(layer, tokens, grid, key_mask=mask)
    (size,) = (group.size for group in diagnosis.groups)
    # The same from the equation.
    with torch.no_grad():
        query, key, value = layer.project(tokens)
        (group,) = layer.head_groups()
        assert isinstance(group.kernel, SquaredRelu)
        assert isinstance(group.relative, Rotary)
        assert query is not None
        assert key is not None
        one, other = (
            group.kernel.query_features(query, scale=1.0),
            group.kernel.key_features(key, scale=1.0),
        )
        places = grid.positions(dtype=torch.float64)
        weights = group.relative.rotate(one, places) @ group.relative.rotate(
            other, places
        ).transpose(-2, -1)
        below = [group.relative.normalizing(features, placed=True) for features in (one, other)]
        below = below[0] @ below[1].transpose(-2, -1)
        weights, below = (part.masked_fill(~mask[:, None, None], 0.0) for part in (weights, below))
        weights = weights / below.sum(dim=-1, keepdim=True)
        gains = weights.abs().sum(dim=-1)[mask[:, None].expand(-1, 4, -1)]
        outputs = (weights @ value).masked_fill(~mask[:, None, :, None], 0.0).abs()
        values = value.masked_fill(~mask[:, None, :, None], 0.0).abs()
    assert size.largest_gain == pytest.approx(float(gains.max()), rel=1e-9)
    assert size.share_above_1 == pytest.approx(float((gains > 1 + 1e-6).double().mean()), abs=1e-12)
    assert size.largest_output == pytest.approx(float(outputs.max()), rel=1e-9)
    ratio = outputs.amax(dim=(-2, -1)) / values.amax(dim=(-2, -1))
    assert size.times_the_values == pytest.approx(float(ratio.max()), rel=1e-9)
    text = str(diagnosis)
    if normalizer == "features":
        assert size.bound is None
        assert size.largest_gain > 10
        assert "does not bound its weights" in diagnosis.advice[0]
        assert "rotary_normalizer='nonnegative', or 'mixed' (the default)" in diagnosis.advice[0]
        assert "nothing bounds them" in text
        assert "all is well" not in text
    else:
        assert size.bound == pytest.approx(1 / LENGTH_SHARE)
        assert diagnosis.advice == ()
        assert "at most 3.33 times whatever the tokens are" in text


@pytest.mark.parametrize(
    ("relative", "part", "name"),
    [
        (None, "query", "queries"),
        (None, "key", "keys"),
        (None, "value", "values"),
        ("rotary", "value", "heads' outputs"),
        (None, "output", "layer's outputs"),
    ],
)
def test_float16_overflows_where_the_room_ends(
    relative: str | None, part: str, name: str, as_users_run_it: None
):
    # Without biases, and as the size of queries and keys cancels, all numbers grow as the tokens do.
    layer = build(5, dim=32, heads=4, relative=relative, qkv_bias=False)
    with torch.no_grad():
        layer.output.bias.zero_()
        layer.get_parameter(f"{part}.weight").mul_(100)
    diagnosis = teka.diagnose(layer, NEAR_BLANK, Grid((5, 7)))
    assert max(diagnosis.largest, key=diagnosis.largest.__getitem__) == name
    for share in (0.9, 1.1):
        tokens = NEAR_BLANK * diagnosis.float16_headroom * share
        scaled = teka.diagnose(layer, tokens, Grid((5, 7)))
        assert scaled.float16_headroom == pytest.approx(1 / share, rel=1e-3)
        assert f"{name} of" in " ".join(scaled.advice)
        half = copy.deepcopy(layer).half()
        assert half(tokens.half(), Grid((5, 7))).isfinite().all() == (share < 1)


def test_its_report_reads_as_written():
    layer = build(kernel="positive", relative="rotation_joint", num_features=16)
    text = str(teka.diagnose(layer, draw_tokens(15), Grid((3, 5))))
    for part in (
        "2 samples of 15 tokens, float32; heads measured on all of them",
        "positive × rotation_joint, heads 0 to 1, computed by the",
        "16 random features for softmax × rotation_joint: the output errs by",
        "times as large as the largest value; at most 1 times whatever the tokens are",
        "gain, a query's weights in absolute value over its denominator: up to 1, above 1 for 0 % of the queries",
        "layer's outputs",
        "float16 has room for",
        "shifts (on a larger grid, cells outside masked): the output changes by",
        "what to do\n  - ",
        "relative='rotation' is the same kernel",
    ):
        assert part in " ".join(text.split("\n    ")), text
    assert max(map(len, text.splitlines())) <= 120


def test_a_sound_layer_needs_nothing():
    diagnosis = teka.diagnose(build(relative="rotation"), draw_tokens(35), Grid((5, 7)))
    assert diagnosis.advice == ()
    assert str(diagnosis).endswith("what to do\n  - Nothing: all is well.")


def test_bad_arguments_are_errors_that_name_them(as_users_run_it: None):
    bad: list[tuple[dict[str, Any], str]] = [
        (
            {"shifts": [(1, 2, 3)]},
            r"shift must be a whole number for each of the 2 axes.*got \(1, 2, 3\)",
        ),
        ({"shifts": [(0.5, 1)]}, "shift must be a whole number"),
        ({"shifts": []}, r"shifts must be at least one shift.*got \[\]"),
        ({"num_prefix_tokens": 1}, "the sequence must have 1 prefix.*got 15 tokens"),
        ({"key_mask": torch.ones(2, 14, dtype=torch.bool)}, r"key_mask must have .*got \(2, 14\)"),
    ]
    for arguments, message in bad:
        with pytest.raises(ValueError, match=message):
            teka.diagnose(build(relative="rotation"), draw_tokens(15), Grid((3, 5)), **arguments)


def test_a_layer_that_trains_and_what_is_no_layer_are_refused(as_users_run_it: None):
    with pytest.raises(ValueError, match="layer is a Attention and it is in training mode"):
        teka.diagnose(build(dropout=0.1).train(), draw_tokens(15))
    not_a_layer: Any = torch.nn.Linear(8, 8)
    with pytest.raises(ValueError, match=r"layer must be a teka\.nn\.Attention.*got 'Linear'"):
        teka.diagnose(not_a_layer, draw_tokens(15))
    with pytest.raises(ValueError, match="2 numbers each"):
        teka.diagnose(
            build(relative="quadratic"), draw_tokens(15), positions=torch.rand(15, 2), shifts=[1.0]
        )


def test_it_finds_the_grid_that_is_said_around_it():
    layer, tokens, grid = build(relative="rotary"), draw_tokens(16), Grid((3, 5))
    with teka.on(grid, 1):
        assert teka.diagnose(layer, tokens) == teka.diagnose(
            layer, tokens, grid, num_prefix_tokens=1
        )


def test_a_batch_of_nothing_is_an_error(as_users_run_it: None):
    with pytest.raises(
        ValueError, match=r"tokens must have shape \(samples, tokens, 8\).*got \(0, 15, 8\)"
    ):
        teka.diagnose(build(), draw_tokens(15)[:0])


def test_every_attention_layer_of_a_model_is_diagnosed_and_explained_on_its_inputs():
    torch.manual_seed(0)
    model = teka.models.Performer((6, 8), 2, 3, dim=8, depth=2, heads=2, window_reach=1).eval()
    images = torch.randn(2, 2, 6, 8)
    names = ["blocks.0.attention", "blocks.0.window_attention", "blocks.1.attention"]
    diagnoses, explanations = teka.diagnose(model, images), teka.explain(model, images)
    assert list(diagnoses) == list(explanations) == names
    block = model.blocks[0]
    assert isinstance(block, teka.nn.TransformerBlock)
    tokens = []
    block.attention.register_forward_pre_hook(lambda _, inputs: tokens.append(inputs[0]))
    with torch.no_grad():
        model(images)
    alone = teka.diagnose(block.attention, tokens[0], model.grid, num_prefix_tokens=1)
    assert diagnoses[names[0]] == alone
    assert explanations[names[0]] == teka.explain(
        block.attention, model.grid, num_prefix_tokens=1, batch=2
    )
    assert names[2] in str(diagnoses)
    assert names[2] in str(explanations)


def test_layers_that_attend_to_a_context_are_skipped_with_the_reason():
    torch.manual_seed(0)
    down = teka.nn.AttentionDownsample(4, 8, 2, sampling=teka.nn.PolyphaseDownsample(2)).eval()
    diagnoses = teka.diagnose(down, torch.randn(1, 4, 6, 6))
    assert not diagnoses
    assert "context" in diagnoses.skipped["attend.attention"]
