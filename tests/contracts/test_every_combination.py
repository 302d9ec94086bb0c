import pytest

from teka import Grid
from teka.functional import BACKENDS, KERNELS, RELATIVES, attention
from tests.contracts.cases import (
    FAST_CASES,
    PAIRS,
    SUPPORTED_CASES,
    UNSUPPORTED_CASES,
    Case,
    draw_inputs,
    fast_backends,
    parametrize_by_kernel,
)


@parametrize_by_kernel(UNSUPPORTED_CASES)
def test_unsupported_combinations_are_errors(case: Case):
    chosen = {"kernel": case.kernel, "relative": case.relative, "backend": case.backend}
    with pytest.raises(
        ValueError,
        match=rf"backend must be .*got '{case.backend}'|kernel must be .*got '{case.kernel}'",
    ):
        attention(*draw_inputs(15), **chosen, grid=Grid((3, 5)))


@parametrize_by_kernel([case for case in FAST_CASES if case.backend != "linear"])
def test_positions_are_an_error_for_grid_backends(case: Case):
    chosen = {"kernel": case.kernel, "relative": case.relative, "backend": case.backend}
    with pytest.raises(ValueError, match=rf"backend must be .*got '{case.backend}'|must be a grid"):
        attention(*draw_inputs(15), **chosen, positions=Grid((3, 5)).positions())


def test_every_kernel_and_backend_is_tested():
    assert {case.kernel for case in PAIRS} == set(KERNELS)
    assert {case.relative for case in PAIRS} == {None, *RELATIVES}
    assert {case.backend for case in SUPPORTED_CASES} == set(BACKENDS)
    fast = {(case.kernel, case.relative) for case in FAST_CASES}
    assert fast == {
        (pair.kernel, pair.relative) for pair in PAIRS if fast_backends(pair.kernel, pair.relative)
    }
