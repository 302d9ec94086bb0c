from typing import Any

import pytest
import torch

from teka.functional import RELATIVES, ClippedDistanceBias
from teka.functional.kernels import make_content_kernel
from teka.functional.relative import make_relative_kernel
from tests.contracts.cases import with_leaves

# Of however many axes, and of however many heads.
BY_DISTANCE = ("alibi", "clipped", "clipped_features")
SHARED = ("clipped", "clipped_features", "shaw")


@pytest.mark.parametrize("name", RELATIVES)
def test_make_relative_by_name_is_reproducible(name: str):
    kernels = [
        make_relative_kernel(name, heads=3, dim=5, num_axes=2, kernel="softmax") for _ in range(2)
    ]
    assert kernels[0].name == name
    leaves, others = (with_leaves(relative)[1] for relative in kernels)
    assert leaves
    assert all(torch.equal(leaf, others[field]) for field, leaf in leaves.items())


def test_instance_is_returned_unchanged():
    relative = ClippedDistanceBias(torch.zeros(3, 5))
    assert make_relative_kernel(relative, heads=3, dim=5, num_axes=2, kernel="softmax") is relative


@pytest.mark.parametrize("name", RELATIVES)
def test_equivariance_is_declared(name: str):
    assert RELATIVES[name].equivariance in ("exact", "in expectation")


@pytest.mark.parametrize(
    ("relative", "message"),
    [("cliped", "Did you mean 'clipped'"), (3, "None, a name or an instance")],
)
def test_invalid_relative_kernels_raise(relative: Any, message: str, unchecked_annotations: None):
    with pytest.raises(ValueError, match=message):
        make_relative_kernel(relative, heads=3, dim=5, num_axes=2, kernel="softmax")


@pytest.mark.parametrize("name", RELATIVES)
def test_other_numbers_of_axes_or_heads_raise(name: str):
    kernel = make_content_kernel("positive", 5)
    relative = make_relative_kernel(name, heads=3, dim=5, num_axes=2, kernel="positive")
    relative.check_kernel_and_positions(heads=3, dim=5, num_axes=2, kernel=kernel)
    if name not in BY_DISTANCE:
        message = (
            r"grid or positions must be 2, because relative\.\w+ has shape .*got 3\. "
            r"Make the layer with num_axes=3"
        )
        with pytest.raises(ValueError, match=message):
            relative.check_kernel_and_positions(heads=3, dim=5, num_axes=3, kernel=kernel)
    if name not in SHARED:
        with pytest.raises(ValueError, match=r"relative\.\w+ must have shape \(2,.*got \(3,.*\)"):
            relative.check_kernel_and_positions(heads=2, dim=5, num_axes=2, kernel=kernel)
