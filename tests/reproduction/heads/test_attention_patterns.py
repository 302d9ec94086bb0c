import math
from statistics import NormalDist

import numpy as np
import pytest
import torch
from torch import Tensor

from reproduction.baselines import SelfAttentionNetwork
from reproduction.baselines.self_attention_network import POSITIONS
from reproduction.heads.attention_patterns import (
    compute_attention_maps,
    compute_layer_attention_weights,
    find_middle_token,
    measure_attended_offsets,
    measure_resemblance_by_chance,
)
from teka import Grid
from teka.functional import RelativeKernel, relative
from teka.functional.positions import Positions
from teka.nn import EmbeddedBiasTable, LearnedRelativeKernel
from teka.nn.relative import RelativeModule
from teka.training import Run

GRID = Grid((11, 13))
WINDOW = [(float(down), float(right)) for down in (-1, 0, 1) for right in (-1, 0, 1)]
SIZE = (10, 14)


class FixedKernel(RelativeModule):
    """A module that returns a relative kernel."""

    def __init__(self, kernel: RelativeKernel) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self) -> RelativeKernel:
        return self.kernel


def make_run(position: str) -> Run:
    return Run.from_fields(model="self_attention", position=position, dim=4)


def measure_kernel(kernel: RelativeKernel, grid: Grid = GRID) -> dict[str, Tensor]:
    """Measure one layer with a relative kernel."""
    return measure_attended_offsets([FixedKernel(kernel)], grid)


def make_gaussians(
    *centers: tuple[float, float], precision: float = 50.0
) -> relative.QuadraticBias:
    return relative.QuadraticBias(
        torch.tensor(centers, dtype=torch.float64),
        torch.full((len(centers),), precision, dtype=torch.float64),
    )


def layer_values(heads: dict[str, Tensor], *names: str) -> list[float]:
    """Return measured values of the only layer."""
    return [heads[name].item() for name in names]


def test_narrow_gaussian_attends_to_its_center():
    heads = measure_kernel(make_gaussians((0.0, 0.0), (-2.0, 3.0), (1.0, -1.0)))
    assert heads["offset"].tolist() == [[0, 0], [-2, 3], [1, -1]]
    torch.testing.assert_close(heads["mean"], heads["offset"].double())
    torch.testing.assert_close(heads["weight"], torch.ones(3, dtype=torch.float64))
    assert heads["covariance"].abs().max() < 1e-12


def test_wide_gaussian_has_attention_with_its_mean_and_covariance():
    # On a lattice a Gaussian of standard deviation 1 has variance 1 but for about 8π² e^(−2π²).
    heads = measure_kernel(make_gaussians((0.25, -0.5), precision=0.5), Grid((31, 29)))
    mean = torch.tensor([0.25, -0.5], dtype=torch.float64)
    torch.testing.assert_close(heads["mean"][0], mean, atol=1e-6, rtol=0)
    identity = torch.eye(2, dtype=torch.float64)
    torch.testing.assert_close(heads["covariance"][0], identity, atol=1e-6, rtol=0)


def test_table_has_mean_attention_but_no_center():
    torch.manual_seed(0)
    module = EmbeddedBiasTable(2, 3, max_offset=12, embedding_dim=5)
    kernel = module().adapt_to_positions(Positions(GRID))
    assert isinstance(kernel, relative.BiasTable)
    heads = measure_attended_offsets([module], GRID)
    assert heads["center"].isnan().all()
    row, column = divmod(find_middle_token(GRID), 13)
    weights = torch.stack(
        [
            torch.stack(
                [
                    kernel.log_weight_at(-torch.tensor([float(y - row), float(x - column)]))
                    for x in range(13)
                ],
                dim=-1,
            )
            for y in range(11)
        ],
        dim=1,
    )
    weights = weights.double().flatten(1).softmax(dim=-1).unflatten(1, (11, 13))
    down = (weights.sum(dim=2) * torch.arange(-row, 11 - row)).sum(dim=1)
    right = (weights.sum(dim=1) * torch.arange(-column, 13 - column)).sum(dim=1)
    mean = torch.stack([down, right], dim=-1)
    torch.testing.assert_close(heads["mean"], mean, atol=1e-5, rtol=1e-5)
    # Rows and columns of a table are independent.
    assert heads["covariance"][:, 0, 1].abs().max() < 1e-5
    for head, (y, x) in enumerate(heads["offset"].tolist()):
        assert heads["weight"][head] == pytest.approx(weights[head].max().item(), rel=1e-5)
        assert weights[head, y + row, x + column] == weights[head].max()


def test_offsets_on_a_periodic_grid_are_the_shortest():
    heads = measure_kernel(make_gaussians((6.0, 0.0)), Grid((7, 5), periodic=True))
    assert heads["offset"].tolist() == [[-1, 0]]


def test_layers_can_have_different_numbers_of_heads():
    model = SelfAttentionNetwork((10, 14), 1, 3, dim=4, depth=2, heads=(3, 2))
    first, second = (attention.relative for attention in model.attention_layers())
    assert isinstance(first, LearnedRelativeKernel)
    assert isinstance(second, LearnedRelativeKernel)
    heads = measure_attended_offsets([first, second], model.grid)
    torch.testing.assert_close(heads["center"][3:], second.center.detach().double())
    assert math.prod(model.grid.shape) == 35


def test_heads_of_a_convolution_fill_its_window():
    heads = measure_kernel(make_gaussians(*WINDOW, precision=20.0))
    assert layer_values(heads, "local", "distinct", "window_3", "window_5") == [9] * 4
    assert heads["spread"] < 1e-3
    assert heads["distance"].item() == pytest.approx(1.0)


def test_wide_heads_have_offsets_but_are_not_local():
    heads = measure_kernel(make_gaussians(*WINDOW, precision=0.5))
    assert layer_values(heads, "local", "window_3") == [0, 9]
    assert heads["spread"].item() == pytest.approx(1.0, abs=1e-3)


def test_heads_with_the_same_offset_count_once():
    heads = measure_kernel(
        make_gaussians((0, 1), (0.2, 1.1), (2, -2), (4, 4), (-5, 0), precision=20.0)
    )
    assert layer_values(heads, "distinct", "window_3", "window_5") == [4, 1, 2]


def test_spread_is_the_spread_of_the_widest_direction():
    factor = torch.tensor([[[1.0, 1.0], [-1 / 3, 1 / 3]]], dtype=torch.float64) / math.sqrt(2)
    center = torch.zeros(1, 2, dtype=torch.float64)
    heads = measure_kernel(relative.GeneralizedQuadraticBias(center, factor), Grid((41, 41)))
    assert heads["spread"].item() == pytest.approx(3.0, rel=1e-3)


def test_random_centers_fill_the_expected_part_of_the_window():
    heads, cell = 7, NormalDist(0, 2)
    along = [cell.cdf(offset + 0.5) - cell.cdf(offset - 0.5) for offset in (-1, 0, 1)]
    expected = sum(1 - (1 - down * right) ** heads for down in along for right in along)
    chance = measure_resemblance_by_chance(make_run("quadratic"), [heads], Grid((23, 23)))
    # The standard deviation of one draw is about 1.1, and of the mean of 200 therefore 0.08.
    assert chance["chance_window_3"] == pytest.approx(expected, abs=0.3)


@pytest.mark.parametrize("position", POSITIONS)
def test_random_layers_are_reproducible_and_keep_the_random_state(position):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = measure_resemblance_by_chance(make_run(position), [3, 2], Grid((5, 7)))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    again = measure_resemblance_by_chance(make_run(position), [3, 2], Grid((5, 7)))
    assert all(np.array_equal(again[name], values) for name, values in first.items())
    assert first["chance_window_3"].shape == (2,)


def test_nan_parameters_give_nan_measurements():
    assert (
        measure_kernel(make_gaussians((math.nan, 0.0), (0.0, 0.0), precision=1.0))["spread"]
        .isnan()
        .all()
    )


def make_network(**options):
    torch.manual_seed(0)
    return SelfAttentionNetwork(
        SIZE, 1, 3, **{"dim": 6, "depth": 2, "heads": (3, 2), **options}
    ).eval()


@pytest.fixture
def images():
    return torch.rand(23, 1, *SIZE, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("position", ["quadratic", "generalized_quadratic", "table"])
def test_attention_maps_without_content_equal_attention_by_position(images, position):
    model = make_network(position=position)
    maps = compute_attention_maps(model, images)
    assert [weights.shape for weights in maps] == [(3, 5, 7), (2, 5, 7)]
    heads = measure_attended_offsets(
        [layer.relative for layer in model.attention_layers() if layer.relative], model.grid
    )
    flat = np.concatenate([weights.reshape(len(weights), -1) for weights in maps])
    np.testing.assert_allclose(flat.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(flat.max(axis=1), heads["weight"].numpy(), rtol=1e-4)
    rows, columns = np.divmod(flat.argmax(axis=1), 7)
    assert np.stack([rows - 2, columns - 3], axis=-1).tolist() == heads["offset"].tolist()


def test_attention_maps_with_content_are_means_over_images(images):
    model = make_network(content="softmax", position="table")
    together = compute_attention_maps(model, images)
    alone = [compute_attention_maps(model, image[None]) for image in images]
    for layer, weights in enumerate(together):
        np.testing.assert_allclose(
            weights, np.mean([maps[layer] for maps in alone], axis=0), atol=1e-6
        )
        np.testing.assert_allclose(weights.sum(axis=(1, 2)), 1, rtol=1e-5)
    assert np.abs(alone[0][0] - alone[1][0]).max() > 1e-4


def test_attention_weights_give_the_output_of_the_layer(images):
    model = make_network(content="softmax", position="table")
    layer, tokens = model.attention_layers()[0], torch.randn(2, 35, 6)
    with torch.no_grad():
        weights = compute_layer_attention_weights(layer, tokens, model.grid)
        mixed = torch.einsum("bhij,bjd->bihd", weights, tokens)
        torch.testing.assert_close(layer.output(mixed.flatten(2)), layer(tokens, model.grid))


def test_attention_maps_leave_no_hooks(images):
    model = make_network()
    compute_attention_maps(model, images)
    assert not any(layer._forward_pre_hooks for layer in model.attention_layers())
