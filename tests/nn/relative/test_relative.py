from typing import Any

import pytest
import torch
from tests.contracts.cases import with_leaves

from teka.functional.kernel import Softmax
from teka.functional.relative import RELATIVES
from teka.nn.relative import RELATIVE_MODULES, Clipped, Fourier, Rotary, make_relative_module, relative_class


def make(relative: Any, kernel_features: int = 5, num_waves: int | None = None):
    return make_relative_module(
        relative,
        num_axes=2,
        heads=3,
        dim_head=5,
        num_features=None,
        kernel_features=kernel_features,
        num_waves=num_waves,
    )


@pytest.mark.parametrize("name", RELATIVES)
def test_every_relative_kernel_has_a_module_of_its_name(name: str):
    module = make(name)
    assert module is not None
    kernel = module()
    assert type(kernel) is RELATIVES[name]
    kernel.check(heads=3, dim=5, num_axes=2, kernel=Softmax())


@pytest.mark.parametrize("name", RELATIVES)
def test_a_state_of_plain_names_makes_the_same_kernel(name: str):
    module, other = make(name), make(name)
    assert module is not None
    assert other is not None
    other.load_state_dict(module.state_dict())
    assert all("." not in key or key.startswith("random_features.") for key in module.state_dict())
    leaves, others = (with_leaves(kernel)[1] for kernel in (module(), other()))
    assert all(torch.equal(leaf, others[field]) for field, leaf in leaves.items())


def test_rotary_turns_all_pairs_of_the_content_kernels_features():
    module = make("rotary", kernel_features=9)
    assert isinstance(module, Rotary)
    assert module.frequency.shape == (3, 4, 2)
    with pytest.raises(ValueError, match="the number of features of kernel is 1, expected at least 2"):
        make("rotary", kernel_features=1)


def test_the_registry_holds_every_relative_kernel():
    assert set(RELATIVE_MODULES) == set(RELATIVES)
    for name, kind in RELATIVE_MODULES.items():
        assert type(make(name)) is kind
        assert relative_class(name) is relative_class(make(name)) is kind
    assert relative_class(None) is None


def test_a_number_of_waves_is_for_waves_made_by_name():
    module = make("fourier", num_waves=7)
    assert isinstance(module, Fourier)
    assert module.frequency.shape == (3, 7, 2)
    for relative in (None, "rotation", Fourier(2, 3)):
        with pytest.raises(ValueError, match="num_waves is 7, expected None with relative="):
            make(relative, num_waves=7)


def test_a_module_and_none_are_themselves():
    module = Clipped(5)
    assert make(module) is module
    assert make(None) is None


@pytest.mark.parametrize(("relative", "message"), [("rotate", "did you mean 'rotation'"), (3, "a name or a module")])
def test_what_is_no_relative_kernel_is_refused(relative: Any, message: str, as_users_run_it: None):
    with pytest.raises(ValueError, match=message):
        make(relative)
