import pytest
from tests.contracts.cases import FAST, IMPOSSIBLE, KERNEL_CLASSES, PAIRS, POSSIBLE, Case, draw_inputs

from teka import Grid
from teka.functional import attention
from teka.functional.backend import BACKENDS
from teka.functional.kernel import KERNELS, FeatureKernel
from teka.functional.relative import RELATIVES


@pytest.mark.parametrize("case", IMPOSSIBLE, ids=str)
def test_what_cannot_be_computed_is_refused_by_name(case: Case):
    query, key, value = draw_inputs(15)
    with pytest.raises(ValueError, match=f"backend is '{case.backend}'|kernel is '{case.kernel}'"):
        attention(
            query,
            key,
            value,
            kernel=case.kernel,
            relative=case.relative,
            grid=Grid((3, 5)),
            backend=case.backend,
        )


@pytest.mark.parametrize("case", [case for case in FAST if case.backend != "linear"], ids=str)
def test_a_backend_that_needs_a_grid_refuses_positions(case: Case):
    query, key, value = draw_inputs(15)
    with pytest.raises(ValueError, match=f"backend is '{case.backend}'|expected a grid"):
        attention(
            query,
            key,
            value,
            kernel=case.kernel,
            relative=case.relative,
            positions=Grid((3, 5)).positions(),
            backend=case.backend,
        )


def test_no_kernel_relative_kernel_or_backend_is_left_out():
    assert {case.kernel for case in PAIRS} == set(KERNELS)
    assert {case.relative for case in PAIRS} == {None, *RELATIVES}
    assert {case.backend for case in POSSIBLE} == set(BACKENDS)
    fast = {(case.kernel, case.relative) for case in FAST}
    assert fast == {
        (pair.kernel, pair.relative) for pair in PAIRS if issubclass(KERNEL_CLASSES[pair.kernel], FeatureKernel)
    }
