import math
from typing import Any

import pytest
import torch

from teka.functional import Positive, SquaredRelu, Trigonometric, default_num_features
from teka.functional.kernel import KERNELS, make_kernel


@pytest.mark.parametrize("name", KERNELS)
def test_a_name_makes_the_kernel_of_that_name(name: str):
    assert make_kernel(name, 5).name == name


def test_an_instance_is_itself():
    kernel = SquaredRelu(0.1)
    assert make_kernel(kernel, 5) is kernel


def test_random_features_by_name_have_the_default_number_and_the_same_draw_every_time():
    for name in ("positive", "trigonometric"):
        one, other = make_kernel(name, 8), make_kernel(name, 8)
        assert isinstance(one, Positive | Trigonometric)
        assert isinstance(other, Positive | Trigonometric)
        assert one.projection.shape == (16, 8)
        assert torch.equal(one.projection, other.projection)


def test_the_default_number_of_features_is_d_ln_d_rounded_down_and_at_least_one():
    assert [default_num_features(dim) for dim in (1, 2, 32, 48)] == [1, 1, 110, 185]
    assert default_num_features(64) == math.floor(64 * math.log(64))


@pytest.mark.parametrize(
    ("kernel", "message"),
    [("squared-relu", "did you mean 'squared_relu'"), (None, "a name or an instance"), (Positive, "a name or an inst")],
)
def test_what_is_no_kernel_is_refused(kernel: Any, message: str, as_users_run_it: None):
    with pytest.raises(ValueError, match=message):
        make_kernel(kernel, 5)
