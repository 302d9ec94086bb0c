import copy
import json
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import teka
from teka import Grid
from teka.functional import PositiveFeatures, Rotary, SquaredRelu, attention
from teka.functional.positions import Positions
from teka.functional.relative.rotary import LENGTH_SHARE
from teka.nn import Attention, RandomFeatures
from teka.nn.diagnostics.diagnose import MAX_TOKENS
from teka.nn.diagnostics.report import (
    COLLAPSED_SPREAD,
    ApproximationErrors,
    estimate_required_features,
)
from tests.contracts.cases import PAIRS, Case


def build(seed: int = 0, **options: Any) -> Attention:
    torch.manual_seed(seed)
    options = {"relative": None, **options}
    return Attention(options.pop("dim", 8), options.pop("heads", 2), **options).eval()


def draw_tokens(num_tokens: int, dim: int = 8, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(2, num_tokens, dim, generator=torch.Generator().manual_seed(1))


# Every content kernel and every relative kernel. tests/contracts checks equivariance of all pairs.
DIAGNOSED = [
    pair
    for pair in PAIRS
    if pair.relative in (None, "rotation_joint")
    or pair.kernel in ("squared_relu", "positive", "hedgehog")
]


@pytest.mark.parametrize("pair", DIAGNOSED, ids=str)
def test_all_layers_but_the_joint_rotation_are_equivariant(pair: Case, unchecked_annotations: None):
    layer = build(kernel=pair.kernel, relative=pair.relative)
    diagnosis = teka.diagnose(layer, draw_tokens(1 + 15), Grid((3, 5)), num_prefix_tokens=1)
    assert diagnosis.shift is not None
    assert diagnosis.shift.noise_floor == 0
    joint = pair.relative == "rotation_joint" and pair.kernel != "softmax"
    assert (diagnosis.shift.float64_error < 1e-9) != joint
    assert (diagnosis.shift.maximum > 0.01) == joint
    names = [finding.name for finding in diagnosis.findings]
    assert ("shift sensitivity" in names) == joint
    assert sum(len(group.heads) for group in diagnosis.groups) == 2
    for group in diagnosis.groups:
        assert max(group.rounding.values(), default=0.0) < 1e-3
        assert group.output_ratio <= group.largest_gain * (1 + 1e-6)
        assert group.bound is None or group.largest_gain <= group.bound * (1 + 1e-9)
        assert (group.bound is None) == group.name.startswith("trigonometric")
    assert json.loads(json.dumps(diagnosis.to_dict(), allow_nan=False))["dtype"] == "float32"


@pytest.mark.parametrize("relative", [None, "clipped", "quadratic", "table", "fourier", "rotary"])
def test_tokens_are_rolled_along_periodic_axes_and_moved_along_others(relative: str | None):
    for periodic in ((True, True), (False, True)):
        grid = Grid((5, 7), periodic=periodic)
        shift = teka.diagnose(
            build(relative=relative), draw_tokens(35), grid, shifts=[(1, 2), (-2, 3)]
        ).shift
        assert shift is not None
        assert set(shift.by_shift) == {(1, 2), (-2, 3)}
        assert shift.method.startswith("rolled" if all(periodic) else "moved")
        assert shift.float64_error < 1e-12, periodic


def test_shifts_of_masked_tokens():
    mask = torch.arange(1 + 35) < torch.tensor([[36], [17]])
    shift = teka.diagnose(
        build(relative="rotation", kernel="optimal"),
        draw_tokens(36),
        Grid((5, 7)),
        num_prefix_tokens=1,
        key_mask=mask,
    ).shift
    assert shift is not None
    assert shift.float64_error < 1e-12


@pytest.mark.parametrize("batch", [(), (2,)])
def test_shifts_are_added_to_positions(batch: tuple[int, ...]):
    positions = 9 * torch.rand(*batch, 13, 3, generator=torch.Generator().manual_seed(0))
    for relative, shifts in zip(
        ("quadratic", "fourier", "rotary", "rotation"), 2 * (None, [(1.5, -0.25, 3)]), strict=True
    ):
        layer = build(relative=relative, num_axes=3)
        shift = teka.diagnose(layer, draw_tokens(13), positions=positions, shifts=shifts).shift
        assert shift is not None
        assert shift.method == "added to the positions"
        assert shift.float64_error < 1e-12, relative
    joint = build(relative="rotation_joint", kernel="positive", num_axes=3)
    shift = teka.diagnose(joint, draw_tokens(13), positions=positions).shift
    assert shift is not None
    assert shift.float64_error > 0.01


def test_causal_layers_are_not_shifted_along_periodic_axes():
    layer = build(causal=True, relative="fourier", num_axes=2)
    bounded = teka.diagnose(layer, draw_tokens(35), Grid((5, 7))).shift
    assert bounded is not None
    assert bounded.float64_error < 1e-12
    mixed = teka.diagnose(layer, draw_tokens(35), Grid((5, 7), periodic=(False, True))).shift
    assert mixed is not None
    assert all(step[1] == 0 for step in mixed.by_shift)
    assert mixed.float64_error < 1e-12
    torus = Grid((5, 7), periodic=True)
    assert teka.diagnose(layer, draw_tokens(35), torus).shift is None
    with pytest.raises(ValueError, match="0 along periodic axes"):
        teka.diagnose(layer, draw_tokens(35), torus, shifts=[(0, 1)])


def test_feature_errors_compare_the_layer_with_softmax_attention():
    layer = build(dim=24, heads=3, kernel="positive", num_features=11).double()
    tokens = draw_tokens(29, 24, scale=2.0).double()
    (group,) = teka.diagnose(layer, tokens, Grid(29)).groups
    with torch.no_grad():
        query, key, value = layer.project(tokens)
    assert query is not None
    assert key is not None
    assert isinstance(layer.kernel, RandomFeatures)
    assert group.features is not None
    assert group.features.num_features == 11
    exact = attention(query, key, value)
    estimate = attention(query, key, value, kernel=layer.kernel())
    mean = value.mean(dim=2, keepdim=True).expand_as(value)
    total = ApproximationErrors.from_outputs(estimate, exact, mean)
    assert group.features.total.error == pytest.approx(total.error, rel=1e-9)
    assert group.features.total.spread == pytest.approx(total.spread, rel=1e-9)
    for head, errors in enumerate(group.features.by_head):
        expected = ApproximationErrors.from_outputs(
            estimate[:, head], exact[:, head], mean[:, head]
        )
        assert errors.error == pytest.approx(expected.error, rel=1e-9)
        assert errors.error_of_mean == pytest.approx(expected.error_of_mean, rel=1e-9)
    assert group.query_norm is not None
    assert group.query_norm[1] == pytest.approx(float(query[:, 1].norm(dim=-1).mean()), rel=1e-9)


def test_estimator_errors_are_relative_to_the_norm_of_the_exact_output():
    exact = torch.tensor([[3.0, 0.0], [0.0, 4.0]]).double()
    estimate = torch.tensor([[3.0, 0.0], [0.0, 1.0]]).double()
    errors = ApproximationErrors.from_outputs(estimate, exact, torch.zeros(1, 2).double())
    assert errors == ApproximationErrors(error=3 / 5, error_of_mean=1.0, spread=10**0.5 / 5)


def test_exact_output_equal_to_the_mean_of_the_values_is_no_collapse():
    mean = torch.randn(1, 4, generator=torch.Generator().manual_seed(0)).double()
    for exact in (mean, mean + 1e-12, 0 * mean):
        errors = ApproximationErrors.from_outputs(exact, exact, exact.clone())
        assert errors.spread == 1
        assert errors.error_of_mean < 1e-10
        assert not errors.is_collapsed


def test_the_threshold_of_a_collapse():
    assert ApproximationErrors(1.0, 1.0, COLLAPSED_SPREAD - 1e-9).is_collapsed
    assert not ApproximationErrors(1.0, 1.0, COLLAPSED_SPREAD).is_collapsed


def median_error(layer: Attention, tokens: Tensor, grid: Grid | None = None) -> float:
    """Return the median error over draws, because a few draws have a far larger error."""
    errors = []
    for seed in range(7):
        torch.manual_seed(seed)
        teka.nn.redraw_projections(layer)
        (group,) = teka.diagnose(layer, tokens, grid).groups
        assert group.features is not None
        errors.append(group.features.total.error)
    return sorted(errors)[3]


def test_the_recommended_number_of_features_gives_an_error_near_10_percent():
    options = {"dim": 16, "heads": 2, "kernel": "positive"}
    layer = build(**options, num_features=6)
    tokens = draw_tokens(200, 16, 0.7)
    error = median_error(layer, tokens)
    assert error > 0.2
    more = build(**options, num_features=estimate_required_features(error, 6))
    more.load_state_dict(
        {name: tensor for name, tensor in layer.state_dict().items() if "kernel." not in name},
        False,
    )
    # The error falls more slowly than with the square root, because it has a heavy tail.
    assert median_error(more, tokens) == pytest.approx(0.1, rel=0.4)


@pytest.mark.parametrize(
    ("kernel", "relative", "exact"),
    [
        ("positive", None, "softmax"),
        ("hyperbolic", "rotation", "softmax × rotation"),
        ("optimal", "rotation_joint", "softmax × rotation_joint"),
        ("trigonometric", "fourier", "softmax × fourier"),
        ("positive", "rotary", "softmax"),
    ],
)
def test_more_features_have_a_smaller_error(
    kernel: str, relative: str | None, exact: str, unchecked_annotations: None
):
    errors, tokens, grid = [], draw_tokens(15, scale=0.7), Grid((3, 5))
    for num_features in (32, 512):
        layer = build(kernel=kernel, relative=relative, num_features=num_features)
        (group,) = teka.diagnose(layer, tokens, grid).groups
        assert group.features is not None
        assert group.features.exact == exact
        errors.append(median_error(layer, tokens, grid))
    assert errors[1] < errors[0] / 2  # a quarter if it falls with the square root


def test_clipped_features_are_compared_with_exact_clipped_attention():
    errors = []
    for num_features in (8, 4096):
        layer = build(relative="clipped_features", num_features=num_features)
        assert layer.relative is not None
        torch.nn.init.normal_(
            layer.relative.get_parameter("distance_embedding"), generator=torch.Generator()
        )
        content, clipped = teka.diagnose(layer, draw_tokens(35), Grid((5, 7))).groups
        assert content.features is None
        assert clipped.features is not None
        assert clipped.features.exact == "constant × clipped"
        errors.append(clipped.features.total.error)
    assert errors[1] < errors[0] / 3


def test_draws_of_fixed_norm_are_biased():
    for projection in ("orthogonal", "fixed_norm"):
        layer = build(kernel=RandomFeatures("positive", 4, num_features=4, projection=projection))
        diagnosis = teka.diagnose(layer, draw_tokens(35, scale=3.0))
        assert diagnosis.groups[0].features is not None
        assert diagnosis.groups[0].features.is_biased == (projection == "fixed_norm")
        names = [finding.name for finding in diagnosis.findings]
        assert ("biased features" in names) == (projection == "fixed_norm")


def test_large_inputs_are_measured_on_a_block_with_kept_tokens():
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
    assert diagnosis.inputs == "1 × 4,271 tokens on a grid of (70, 61)"
    assert diagnosis.measured == "1 × 1,025 tokens on a grid of (32, 32)"
    assert diagnosis.groups[0].features is not None
    assert diagnosis.groups[0].features.total.error > 0
    long = teka.diagnose(build(kernel="positive"), draw_tokens(MAX_TOKENS + 77), shifts=None)
    assert long.measured == f"2 × {MAX_TOKENS:,} tokens"
    assert long.shift is None


def test_the_layer_does_not_change_and_the_result_is_deterministic():
    layer = build(kernel="positive", relative="rotation_joint")
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    tokens = draw_tokens(35).requires_grad_()
    state = torch.get_rng_state()
    first, second = (teka.diagnose(layer, tokens, Grid((5, 7))) for _ in range(2))
    assert first == second
    assert str(first) == str(second)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()
    assert not layer.training
    assert tokens.grad is None
    assert all(
        parameter.grad is None and parameter.requires_grad for parameter in layer.parameters()
    )
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.state_dict().items())
    assert layer.get_parameter("value.weight").dtype == torch.float32


@dataclass(frozen=True)
class FlatKernel(PositiveFeatures):
    """Features that do not depend on the queries."""

    def query_exponent(
        self, query: Float[Tensor, "batch heads queries dim"], *, scale: float
    ) -> Float[Tensor, "batch heads queries features"]:
        return torch.zeros_like(super().query_exponent(query, scale=scale))


class FlatFeatures(RandomFeatures):
    def forward(self) -> FlatKernel:
        return FlatKernel(self.projection)


def test_a_collapse_is_reported():
    torch.manual_seed(0)
    layer = build(kernel=FlatFeatures("positive", 4, num_features=9))
    diagnosis = teka.diagnose(layer, draw_tokens(35))
    assert diagnosis.is_collapsed
    finding = diagnosis.findings[0]
    assert finding.name == "collapsed features"
    assert finding.value < finding.threshold
    assert finding.message.endswith("have collapsed in heads 0, 1.")
    assert "The output is nearly the mean of the values for every query." in str(finding)
    assert not teka.diagnose(build(kernel="positive"), draw_tokens(35)).is_collapsed


def test_only_kept_tokens_are_measured():
    tokens = draw_tokens(35).repeat(2, 1, 1)
    key_mask = torch.ones(4, 35, dtype=torch.bool)
    key_mask[:, 28:] = False
    tokens[:, 28:] = torch.nan
    for kernel, relative in (("positive", "fourier"), ("squared_relu", "rotary")):
        layer = build(kernel=kernel, relative=relative)
        masked = teka.diagnose(layer, tokens, Grid((5, 7)), key_mask=key_mask)
        alone = teka.diagnose(layer, tokens[:, :28], Grid((4, 7)))
        for ours, expected in zip(masked.groups, alone.groups, strict=True):
            assert ours.unevenness == pytest.approx(expected.unevenness, rel=1e-6)
            assert ours.largest_gain == pytest.approx(expected.largest_gain, rel=1e-6)
            assert ours.output_ratio == pytest.approx(expected.output_ratio, rel=1e-6)
            assert ours.query_norm == pytest.approx(expected.query_norm, rel=1e-6)


def test_joint_kernel_uses_the_positions_of_kept_tokens():
    layer = build(kernel="positive", relative="rotation_joint", num_features=64)
    key_mask = torch.rand(2, 1 + 35, generator=torch.Generator().manual_seed(0)) < 0.5
    tokens = draw_tokens(1 + 35)
    assert not teka.diagnose(
        layer, tokens, Grid((5, 7)), key_mask=key_mask, num_prefix_tokens=1
    ).is_collapsed
    positions = torch.randn(2, 35, 2, generator=torch.Generator().manual_seed(3))
    assert not teka.diagnose(layer, draw_tokens(35), positions=positions).is_collapsed


NEAR_BLANK = torch.randn(1, 1, 32, generator=torch.Generator().manual_seed(2)) + 1e-3 * torch.randn(
    2, 35, 32, generator=torch.Generator().manual_seed(3)
)


@pytest.mark.parametrize("normalizer", ["features", "mixed", None])
def test_only_the_feature_normalizer_of_rotary_has_large_outputs_for_a_nearly_blank_image(
    normalizer: str | None,
):
    layer = build(2, dim=32, heads=4, relative="rotary", rotary_normalizer=normalizer).double()
    tokens, grid = NEAR_BLANK.double(), Grid((5, 7))
    mask = torch.rand(2, 35, generator=torch.Generator()) < 0.8
    diagnosis = teka.diagnose(layer, tokens, grid, key_mask=mask)
    (measured,) = diagnosis.groups
    # Compute the same from the equation.
    with torch.no_grad():
        query, key, value = layer.project(tokens)
        (group,) = layer.head_groups()
        assert isinstance(group.kernel, SquaredRelu)
        assert isinstance(group.relative, Rotary)
        assert query is not None
        assert key is not None
        query_features = group.kernel.query_features(query, scale=1.0)
        key_features = group.kernel.key_features(key, scale=1.0)
        positions = grid.positions(dtype=torch.float64)
        rotated_query = group.relative.rotate(query_features, positions)
        rotated_key = group.relative.rotate(key_features, positions)
        numerator = rotated_query @ rotated_key.transpose(-2, -1)
        on_grid = Positions(grid)
        query_vectors = group.relative.add_positions_to_features(
            query_features, on_grid, is_key=False
        )
        key_vectors = group.relative.add_positions_to_features(key_features, on_grid, is_key=True)
        denominator = (
            query_vectors.concatenate_denominator_features()
            @ key_vectors.concatenate_denominator_features().mT
        )
        is_dropped = ~mask[:, None, None]
        denominator = denominator.masked_fill(is_dropped, 0.0).sum(dim=-1, keepdim=True)
        weights = numerator.masked_fill(is_dropped, 0.0) / denominator
        gains = weights.abs().sum(dim=-1)[mask[:, None].expand(-1, 4, -1)]
        outputs = (weights @ value).masked_fill(~mask[:, None, :, None], 0.0).abs()
        values = value.masked_fill(~mask[:, None, :, None], 0.0).abs()
    assert measured.largest_gain == pytest.approx(float(gains.max()), rel=1e-9)
    assert measured.share_of_gains_above_1 == pytest.approx(
        float((gains > 1 + 1e-6).double().mean()), abs=1e-12
    )
    assert measured.largest_output == pytest.approx(float(outputs.max()), rel=1e-9)
    ratio = outputs.amax(dim=(-2, -1)) / values.amax(dim=(-2, -1))
    assert measured.output_ratio == pytest.approx(float(ratio.max()), rel=1e-9)
    text = " ".join(str(diagnosis).split())
    if normalizer == "features":
        assert measured.bound is None
        assert measured.largest_gain > 10
        assert diagnosis.findings[0].name == "large outputs"
        assert "are not bounded" in text
        assert "rotary_normalizer='mixed' (the default) or 'nonnegative'" in text
        assert "bound: None" in text
        assert "No problem found." not in text
    else:
        assert measured.bound == pytest.approx(1 / LENGTH_SHARE)
        assert diagnosis.findings == ()
        assert "bound: 3.33" in text


@pytest.mark.parametrize(
    ("relative", "part", "name"),
    [
        (None, "query", "query"),
        (None, "key", "key"),
        (None, "value", "value"),
        ("rotary", "value", "output of a head"),
        (None, "output", "output"),
    ],
)
def test_float16_overflows_beyond_the_headroom(
    relative: str | None, part: str, name: str, unchecked_annotations: None
):
    # Without biases all tensors are proportional to the tokens.
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
        assert any(f"The largest {name} is" in finding.message for finding in scaled.findings)
        half = copy.deepcopy(layer).half()
        assert half(tokens.half(), Grid((5, 7))).isfinite().all() == (share < 1)


def test_the_text_of_a_report():
    layer = build(kernel="positive", relative="rotation_joint", num_features=16)
    text = str(teka.diagnose(layer, draw_tokens(15), Grid((3, 5))))
    for part in (
        "2 × 15 tokens on a grid of (3, 5), float32; heads measured on 2 × 15 tokens",
        "features: exact softmax × rotation_joint, num_features 16, is_biased False, total error",
        "largest gain: 1",
        "room in float16: a factor of",
        "method: moved on a larger grid",
        "findings - ",
        "use relative='rotation', which is exactly equivariant",
    ):
        assert part in " ".join(text.split()), text
    assert max(map(len, text.splitlines())) <= 100


def test_a_layer_without_problems_has_no_findings():
    diagnosis = teka.diagnose(build(relative="rotation"), draw_tokens(35), Grid((5, 7)))
    assert diagnosis.findings == ()
    assert str(diagnosis).endswith("No problem found.")


def test_invalid_arguments_are_errors_with_their_names(unchecked_annotations: None):
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


def test_training_mode_and_modules_without_attention_are_errors(unchecked_annotations: None):
    with pytest.raises(ValueError, match="layer must be in evaluation mode"):
        teka.diagnose(build(dropout=0.1).train(), draw_tokens(15))
    not_a_layer: Any = torch.nn.Linear(8, 8)
    with pytest.raises(ValueError, match=r"layer must be a teka\.nn\.Attention.*got 'Linear'"):
        teka.diagnose(not_a_layer, draw_tokens(15))
    with pytest.raises(ValueError, match="at least one shift with 2 numbers"):
        teka.diagnose(
            build(relative="quadratic"), draw_tokens(15), positions=torch.rand(15, 2), shifts=[1.0]
        )


def test_the_grid_of_teka_on_is_used():
    layer, tokens, grid = build(relative="rotary"), draw_tokens(16), Grid((3, 5))
    with teka.on(grid, 1):
        assert teka.diagnose(layer, tokens) == teka.diagnose(
            layer, tokens, grid, num_prefix_tokens=1
        )


def test_an_empty_batch_is_an_error(unchecked_annotations: None):
    with pytest.raises(
        ValueError, match=r"tokens must have shape \(samples, tokens, 8\).*got \(0, 15, 8\)"
    ):
        teka.diagnose(build(), draw_tokens(15)[:0])


def test_every_layer_of_a_model_is_diagnosed_and_explained():
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
