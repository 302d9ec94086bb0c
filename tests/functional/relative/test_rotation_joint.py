from dataclasses import replace

import pytest
import torch
from tests.contracts.cases import draw_inputs, relative_change
from torch import Tensor

from teka import Grid
from teka.functional import Rotation, RotationJoint, attention
from teka.functional.positions import Positions
from teka.functional.relative import make_relative


def build(num_axes: int = 2) -> RotationJoint:
    relative = make_relative("rotation_joint", heads=3, dim=5, num_axes=num_axes, kernel="softmax")
    assert isinstance(relative, RotationJoint)
    return relative


def build_exact(num_axes: int = 2) -> Rotation:
    joint = build(num_axes)
    return Rotation(joint.frequency, joint.cosine_weight, joint.sine_weight, joint.scale)


def itself(sites: Positions, num_prefix_tokens: int = 0) -> Positions:
    return replace(sites, num_prefix_tokens=num_prefix_tokens)


def logits(query: Tensor, key: Tensor, placement: Positions, num_axes: int) -> Tensor:
    joined_query, joined_key = build(num_axes).concatenate(query, key, placement, scale=0.4)
    return joined_query @ joined_key.transpose(-2, -1)


@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4)])
def test_the_inner_product_of_the_concatenated_vectors_is_the_logit(shape: tuple[int, ...]):
    grid = Grid(shape, 0.5)
    query, key, _ = draw_inputs(grid.num_tokens)
    expected = 0.4 * query @ key.transpose(-2, -1)
    expected = expected + build_exact(len(shape)).log_kernel(query, grid.offsets(dtype=torch.float64), scale=0.4)
    assert relative_change(logits(query, key, itself(Positions(grid)), len(shape)), expected) < 1e-12
    by_positions = itself(Positions(points=grid.positions().expand(2, -1, -1)))
    assert relative_change(logits(query, key, by_positions, len(shape)), expected) < 1e-12


def test_queries_and_keys_may_lie_in_different_places():
    places, other = torch.randn(7, 2, dtype=torch.float64), torch.randn(2, 5, 2, dtype=torch.float64)
    query, key = draw_inputs(7)[0], draw_inputs(5)[1]
    placement = Positions(points=places, key=Positions(points=other))
    offsets = places[None, :, None] - other[:, None]
    expected = 0.4 * query @ key.transpose(-2, -1) + build_exact().log_kernel(query, offsets, scale=0.4)
    assert relative_change(logits(query, key, placement, 2), expected) < 1e-12


def test_a_prefix_has_no_position_among_queries_or_keys():
    grid = Grid((3, 5))
    query, key, _ = draw_inputs(2 + 15)
    found = logits(query, key, itself(Positions(grid), 2), 2)
    content = 0.4 * query @ key.transpose(-2, -1)
    assert relative_change(found[:, :, :2], content[:, :, :2]) < 1e-12
    assert relative_change(found[:, :, :, :2], content[:, :, :, :2]) < 1e-12


def test_with_the_softmax_kernel_it_is_the_rotation_kernel():
    grid = Grid((3, 5))
    query, key, value = draw_inputs(15)
    joint = attention(query, key, value, relative=build(), grid=grid, scale=0.4)
    exact = attention(query, key, value, relative=build_exact(), grid=grid, scale=0.4)
    assert relative_change(joint, exact) < 1e-12


def test_its_default_scale_is_that_of_the_concatenated_size():
    grid = Grid((3, 5))
    query, key, value = draw_inputs(15)
    assert build().num_position_features == 16
    by_default = attention(query, key, value, relative=build(), grid=grid)
    assert torch.equal(by_default, attention(query, key, value, relative=build(), grid=grid, scale=21**-0.5))


@pytest.mark.parametrize("kernel", ["squared_relu", "constant"])
def test_a_kernel_that_does_not_estimate_softmax_is_refused(kernel: str):
    query, key, value = draw_inputs(15)
    with pytest.raises(ValueError, match=f"kernel is '{kernel}', expected softmax or random features of it"):
        attention(query, key, value, kernel=kernel, relative="rotation_joint", grid=Grid((3, 5)))


def test_a_periodic_axis_is_refused():
    placement = itself(Positions(Grid((3, 5), periodic=(False, True))))
    with pytest.raises(ValueError, match="no periodic axis with relative='rotation_joint'"):
        build().on(placement)
    assert isinstance(build().on(itself(Positions(Grid((3, 5))))), RotationJoint)


def test_it_declares_that_it_is_equivariant_in_expectation_only():
    assert RotationJoint.equivariance == "in expectation"
    assert Rotation.equivariance == "exact"
