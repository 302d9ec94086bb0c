from typing import Any

import pytest

from teka.functional.relative import RELATIVES
from teka.nn import Clipped
from teka.nn.relative import make_relative_module


def make(relative: Any):
    return make_relative_module(relative, num_axes=2, heads=3, dim_head=5, num_features=None)


@pytest.mark.parametrize("name", RELATIVES)
def test_every_relative_kernel_has_a_module_of_its_name(name: str):
    module = make(name)
    assert module is not None
    assert type(module()) is RELATIVES[name]


def test_a_module_and_none_are_themselves():
    module = Clipped(5)
    assert make(module) is module
    assert make(None) is None


@pytest.mark.parametrize(("relative", "message"), [("rotate", "did you mean 'rotation'"), (3, "a name or a module")])
def test_what_is_no_relative_kernel_is_refused(relative: Any, message: str, as_users_run_it: None):
    with pytest.raises(ValueError, match=message):
        make(relative)
