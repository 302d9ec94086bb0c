"""Former defects: every test passes on the present code and fails on a faulty version.

`WHERE` names the test and the faulty version of every defect. Tests without a better place follow.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn
from torch.distributed._tools.mem_tracker import MemTracker

from teka import Grid
from teka.functional import PositiveFeatures, SquaredRelu, attention, draw_projection, relative
from teka.functional.positions import Positions
from teka.models import Performer, PerformerConfig
from teka.nn import Attention, AttentionOptions, LearnedRelativeKernel, redraw_projections
from teka.nn.diagnostics.report import ApproximationErrors
from tests.contracts.cases import draw_inputs, for_each, reference_attention, relative_error
from tests.contracts.test_shift import change_under_a_shift_of_positions

HERE = Path(__file__).read_text(encoding="utf-8")
SOURCES = [
    path.read_text(encoding="utf-8")
    for path in sorted(Path(__file__).parents[1].rglob("test_*.py"))
]
# For each defect, its test and the name of the faulty version.
WHERE: dict[str, tuple[str, str]] = {
    "epsilon after the exponential swamps the features": (
        "test_features_dominated_by_epsilon_are_a_collapse",
        "EpsilonAfterExponential",
    ),
    "one maximum over batch, heads and tokens makes a sample depend on its batch-mates": (
        "test_a_maximum_over_the_batch_is_found",
        "MaximumOverTheBatch",
    ),
    "one maximum over all keys leaks the future": (
        "test_a_maximum_over_all_keys_would_leak_the_future",
        "MaximumOverAllKeys",
    ),
    "key masks on V but not on the denominator": (
        "test_an_unmasked_denominator_is_found",
        "DenominatorOfAllKeys",
    ),
    "strategy 1 not equivariant": (
        "test_product_form_is_equivariant_and_joint_form_is_not",
        "JointSinusoidalBias",
    ),
    "strategy 1 worse than the mean": ("test_inaccurate_joint_estimate_is_reported", "joint"),
    "position heads never redrawn": ("test_position_heads_are_redrawn", "NeverRedrawn"),
    "the class token on the grid": (
        "test_a_class_token_with_a_position_is_found",
        "broken = attention",
    ),
    "square grids only": ("test_non_square_grids_keep_their_shape", "square_positions"),
    "float32 hard-coded": ("test_float64_is_not_rounded_to_float32", "RingsInSinglePrecision"),
    "backward memory of O(L^1.5 · k · d)": ("test_memory_of_rings_is_linear", "rings_row_by_row"),
    "dropout parsed and never used": ("test_every_layer_option_has_an_effect", "without_option"),
    "an option that changed nothing": ("test_every_model_option_has_an_effect", "without_option"),
    "redraw counters off by one": (
        "test_projections_are_redrawn_on_schedule",
        "OffByOneClassifier",
    ),
    "drop_last on the test set": ("test_every_test_image_is_evaluated", "without_the_last_batch"),
    "no seed option": ("test_image_order_depends_only_on_the_seed", "shuffled_without_seed"),
    "features of both signs taken to be non-negative": (
        "test_wrong_sign_declaration_is_found",
        "DeclaredNonnegative",
    ),
    "outputs of any size without a finding": (
        "test_only_the_feature_normalizer_of_rotary_has_large_outputs_for_a_nearly_blank_image",
        '"features"',
    ),
}


@for_each(WHERE)
def test_every_defect_has_a_test(names: tuple[str, str]):
    test, faulty_version = names
    (source,) = [text for text in SOURCES if f"def {test}(" in text]
    assert source.count(faulty_version) > (source == HERE)  # the table above mentions it once


# Joint rotation


def test_product_form_is_equivariant_and_joint_form_is_not():
    rotation, joint = (
        kind.make_random_example(
            Generator().manual_seed(0), heads=3, dim=5, num_axes=2, kernel="positive"
        )
        for kind in (relative.SinusoidalBias, relative.JointSinusoidalBias)
    )
    assert isinstance(joint, relative.JointSinusoidalBias)
    shift = torch.tensor([4.0, 3.0], dtype=torch.float64)
    for num_features in (64, 1024):
        drawn = [
            PositiveFeatures(
                draw_projection(num_features, size, generator=Generator().manual_seed(1))
            )
            for size in (5, 5 + joint.num_position_features)
        ]
        assert change_under_a_shift_of_positions(drawn[0], rotation, 2, shift) <= 1e-10
        assert change_under_a_shift_of_positions(drawn[1], joint, 2, shift) > 0.1


def test_inaccurate_joint_estimate_is_reported():
    query, key, value = draw_inputs(64, dim=16, scale=1.0)
    joint = relative.JointSinusoidalBias.make_random_example(
        Generator().manual_seed(0), heads=3, dim=16, num_axes=2, kernel="positive"
    )
    assert isinstance(joint, relative.JointSinusoidalBias)
    projection = draw_projection(
        185, 16 + joint.num_position_features, generator=Generator().manual_seed(1)
    )
    mean = value.mean(dim=2, keepdim=True).expand_as(value)
    options = {"relative": joint, "grid": Grid((8, 8))}
    exact = attention(query, key, value, **options)
    estimate = attention(query, key, value, kernel=PositiveFeatures(projection), **options)
    errors = ApproximationErrors.from_outputs(estimate, exact, mean)
    assert errors.error > errors.error_of_mean


# Clipped distances


class NeverRedrawn(LearnedRelativeKernel):
    """A faulty version whose projection is a plain buffer."""

    def __init__(self, dim_head: int) -> None:
        super().__init__("clipped_features", dim_head=dim_head)
        self.register_buffer("draw", self.random_features.projection.clone())

    def forward(self) -> relative.ClippedDistanceFeatures:
        return relative.ClippedDistanceFeatures(
            self.distance_embedding, projection=self.get_buffer("draw")
        )


@pytest.mark.parametrize(("is_redrawn", "is_correct"), [(True, True), (False, False)])
def test_position_heads_are_redrawn(is_redrawn: bool, is_correct: bool):
    torch.manual_seed(0)
    relative = (
        LearnedRelativeKernel("clipped_features", dim_head=4) if is_redrawn else NeverRedrawn(4)
    )
    layer = Attention(8, 2, relative=relative).eval()
    assert isinstance(layer.relative, LearnedRelativeKernel)
    nn.init.normal_(layer.relative.distance_embedding)
    tokens = torch.randn(2, 15, 8)
    before = layer(tokens, Grid((3, 5)))
    assert redraw_projections(layer) == 1
    assert (relative_error(layer(tokens, Grid((3, 5))), before) > 1e-3) == is_correct


def square_positions(grid: Grid) -> Tensor:
    """A faulty version of `Grid.positions` that assumes a square grid."""
    side = round(grid.num_tokens**0.5)
    cells = torch.arange(grid.num_tokens, dtype=torch.float64)
    return torch.stack([torch.div(cells, side, rounding_mode="floor"), cells % side], dim=-1)


@pytest.mark.parametrize(
    ("positions_of", "is_correct"),
    [(lambda grid: grid.positions(dtype=torch.float64), True), (square_positions, False)],
)
@pytest.mark.parametrize("name", ["rotation", "clipped", "fourier"])
def test_non_square_grids_keep_their_shape(
    name: str, positions_of: Callable[[Grid], Tensor], is_correct: bool
):
    torch.manual_seed(0)
    layer = Attention(8, 2, relative=name).double().eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    patch, outputs = torch.randn(6, 8, dtype=torch.float64), []
    for top, left in ((0, 1), (3, 9)):
        cells = torch.zeros(5, 13, dtype=torch.bool)
        cells[top : top + 2, left : left + 3] = True
        kept = cells.flatten()
        tokens = torch.zeros(1, 65, 8, dtype=torch.float64)
        tokens[0, kept] = patch
        outputs.append(
            layer(tokens, None, kept[None], positions=positions_of(Grid((5, 13))))[0, kept]
        )
    change = relative_error(outputs[1], outputs[0])
    assert change <= 1e-10 if is_correct else change > 1e-3


@dataclass(frozen=True)
class RingsInSinglePrecision(relative.ClippedDistanceBias):
    """A faulty version that always computes logits in float32."""

    name: ClassVar[str] = "rings_in_single_precision"

    def log_rings(
        self, query: Float[Tensor, "batch heads queries dim"], *, scale: float
    ) -> Float[Tensor, "batch heads queries rings"]:
        return super().log_rings(query.float(), scale=scale).to(query)


@pytest.mark.parametrize(
    ("kind", "is_correct"), [(relative.ClippedDistanceBias, True), (RingsInSinglePrecision, False)]
)
@pytest.mark.parametrize("backend", ["dense", "rings"])
def test_float64_is_not_rounded_to_float32(
    kind: type[relative.ClippedDistanceBias], backend: str, is_correct: bool
):
    inputs = draw_inputs(15)
    embedding = torch.randn(4, 5, dtype=torch.float64, generator=Generator().manual_seed(0))
    positions = Positions(Grid((3, 5)))
    reference = reference_attention(
        inputs, SquaredRelu(), relative.ClippedDistanceBias(embedding), positions, scale=0.4
    )
    output = attention(
        *inputs,
        kernel="squared_relu",
        relative=kind(embedding),
        grid=positions.grid,
        scale=0.4,
        backend=backend,
    )
    assert output.dtype == torch.float64
    assert (relative_error(output, reference) <= 1e-10) == is_correct
    assert relative_error(output, reference) <= 1e-5


def rings_of_teka(query: Tensor, value: Tensor, grid: Grid) -> Tensor:
    embedding = torch.eye(query.shape[-1], dtype=query.dtype)
    return attention(
        query,
        query,
        value,
        kernel="constant",
        relative=relative.ClippedDistanceBias(embedding),
        grid=grid,
        scale=1.0,
        backend="rings",
    )


def rings_row_by_row(query: Tensor, value: Tensor, grid: Grid) -> Tensor:
    """A faulty version that stores a sum for every ring, cell and row of the grid."""
    rings = grid.offsets(dtype=query.dtype).abs().sum(dim=-1).clamp_max(query.shape[-1] - 1)
    factor = query.exp()
    numerator, denominator = torch.zeros_like(value), torch.zeros_like(value[..., :1])
    rows = value.unflatten(2, grid.shape)
    for ring in range(query.shape[-1]):
        member = (rings == ring).to(value).unflatten(1, grid.shape)
        parts = torch.einsum("lij,bhijd->bhlid", member, rows)
        numerator = numerator + (factor[..., ring, None, None] * parts).sum(dim=3)
        denominator = denominator + factor[..., ring, None] * member.sum(dim=(1, 2))[:, None]
    return numerator / denominator


@pytest.mark.parametrize(
    ("evaluate", "is_correct"), [(rings_of_teka, True), (rings_row_by_row, False)]
)
def test_memory_of_rings_is_linear(evaluate: Callable[..., Tensor], is_correct: bool):
    peaks = []
    for grid in (Grid((11, 12)), Grid((22, 24))):
        # The embeddings are unit vectors, so that the queries are the logits of the rings.
        query, _, value = (
            tensor.requires_grad_() for tensor in draw_inputs(grid.num_tokens, dim_value=7)
        )
        expected = rings_of_teka(query, value, grid)
        assert relative_error(rings_row_by_row(query, value, grid), expected) <= 1e-10
        with MemTracker() as tracker:
            evaluate(query, value, grid).sum().backward()
        peaks.append(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])
    # The second grid has four times as many tokens.
    assert (peaks[1] <= 4.4 * peaks[0]) == is_correct


# Options

SHARED_OPTIONS: dict[str, tuple[Any, Any]] = {
    "dim": (8, 12),
    "heads": (2, 4),
    "dim_head": (None, 3),
    "kernel": ("positive", "squared_relu"),
    "num_features": (None, 7),
    "projection": (None, "fixed_norm"),
    "qkv_bias": (True, False),
    "dropout": (0.0, 0.5),
    "backend": ("dense", "toeplitz"),
    "position_heads": (None, 1),
    "num_waves": (None, 3),
    "query_key": ("plain", "centred"),
    "gate": (False, True),
    "value_convolution": (None, 3),
    "rotary_normalizer": (None, "lengths"),
}
LAYER_OPTIONS = SHARED_OPTIONS | {
    "relative": ("rotation", None),
    "causal": (False, True),
    "context_dim": (None, 6),
    "num_axes": (2, 1),
    "values": ("projected", "tokens"),
}
MODEL_OPTIONS = SHARED_OPTIONS | {
    "image_size": ((6, 4), (4, 6)),
    "in_channels": (2, 3),
    "num_classes": (3, 5),
    "depth": (2, 3),
    "position": ("rotation", "absolute"),
    "patch_size": (1, 2),
    "stem": ("patch", "convolution"),
    "stem_depth": (0, 1),
    "periodic": (False, True),
    "pool": ("class", "mean"),
    "head": ("pooled", "dense"),
    "select": ("norm", "learned"),
    "resampling": ("convolution", "attention"),
    "blur": (None, 3),
    "subpixels": (1, 2),
    "mlp_ratio": (4.0, 2.0),
    "longest_wave": (None, 5.0),
    "wave_weight": (None, 3.0),
    "rotation_weight_scale": (None, 2.0),
    "max_distance": (None, 2),
    "window_reach": (None, 2),
    "epsilon": (None, 0.3),
}
# Other options that an option needs to have an effect.
WITH_WAVES = {"relative": "fourier", "position": "fourier"}
WITH_HALVING = {"stem": "polyphase", "patch_size": 2}
NEEDED = {
    "num_waves": WITH_WAVES,
    "longest_wave": WITH_WAVES,
    "wave_weight": WITH_WAVES,
    "rotary_normalizer": {
        "relative": "rotary",
        "position": "rotary",
        "kernel": "squared_relu",
        "backend": "linear",
    },
    "max_distance": {"position": "clipped"},
    "epsilon": {"kernel": "squared_relu"},
    "select": WITH_HALVING,
    "resampling": {**WITH_HALVING, "head": "dense"},
    "blur": WITH_HALVING,
    "subpixels": {"periodic": True},
    "stem_depth": WITH_HALVING,
}


def without_option(
    option: str, build: Callable[..., nn.Module], default: object
) -> Callable[..., nn.Module]:
    """Return a faulty version of `build` that ignores an option."""

    def build_without_option(**options: Any) -> nn.Module:
        return build(**{**options, option: default})

    return build_without_option


def chosen_backend(model: nn.Module) -> object:
    if isinstance(model, Performer):
        return model.chosen_backends()
    assert isinstance(model, Attention)
    return model.chosen_backend(Grid((3, 5)))


def has_effect(
    build: Callable[..., nn.Module],
    options: dict[str, tuple[Any, Any]],
    option: str,
    inputs: tuple[Any, ...],
) -> bool:
    """Return True if two values of an option give other parameters, backends or outputs."""
    needed = NEEDED.get(option, {})
    first = {name: needed.get(name, values[0]) for name, values in options.items()}
    models = []
    for value in options[option]:
        torch.manual_seed(0)
        models.append(build(**{**first, option: value}))
    shapes = [
        {name: tensor.shape for name, tensor in model.state_dict().items()} for model in models
    ]
    if shapes[0] != shapes[1] or chosen_backend(models[0]) != chosen_backend(models[1]):
        return True
    outputs = []
    for model in models:
        torch.manual_seed(1)
        outputs.append(model(*inputs))
    return not torch.equal(*outputs)


def test_every_layer_option_has_an_effect():
    assert set(LAYER_OPTIONS) == {
        "dim",
        "heads",
        *(field.name for field in fields(AttentionOptions)),
    }
    inputs = (torch.randn(2, 15, 8, generator=Generator().manual_seed(2)), Grid((3, 5)))
    for option in LAYER_OPTIONS:
        assert has_effect(Attention, LAYER_OPTIONS, option, inputs), option
        faulty = without_option(option, Attention, LAYER_OPTIONS[option][0])
        assert not has_effect(faulty, LAYER_OPTIONS, option, inputs), option


def test_every_model_option_has_an_effect():
    assert set(MODEL_OPTIONS) == {field.name for field in fields(PerformerConfig)}
    inputs = (torch.randn(2, 2, 6, 4, generator=Generator().manual_seed(2)),)
    for option in MODEL_OPTIONS:
        if option == "image_size":  # it only decides which images are accepted
            other = Performer(
                **{name: values[name == option] for name, values in MODEL_OPTIONS.items()}
            )
            with pytest.raises(ValueError, match="images"):
                other(*inputs)
            continue
        assert has_effect(Performer, MODEL_OPTIONS, option, inputs), option
        faulty = without_option(option, Performer, MODEL_OPTIONS[option][0])
        assert not has_effect(faulty, MODEL_OPTIONS, option, inputs), option
