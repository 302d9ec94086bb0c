import itertools
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from teka import Grid
from teka._compat import replace
from teka.functional import (
    BACKENDS,
    RELATIVES,
    ClippedDistanceBias,
    Fourier,
    JointSinusoidalBias,
    RelativeKernel,
    WindowBias,
    attention,
)
from teka.functional.kernels import RANDOM_KERNELS
from teka.functional.relative import make_relative_kernel
from teka.functional.relative.biases import DecayRelativeKernel
from tests.contracts.cases import (
    DEVICE,
    FAST_CASES,
    SUPPORTED_CASES,
    Case,
    build_kernel,
    build_relative,
    draw_inputs,
    draw_mask,
    is_signed,
    parametrize_by_kernel,
    relative_error,
    with_leaves,
)

TOLERANCE = 1e-10
# Errors of float32 relative to dense attention in float64 were up to 3.3e-6. With signed weights, a
# denominator near 0 magnifies rounding, to errors of up to 4.5e-4.
FLOAT32_BAND = 1e-5
FLOAT32_SIGNED_BAND = 5e-3
FLOAT32_SHAPES = [(97,), (7, 11), (3, 5, 4)]


@dataclass(frozen=True)
class Size:
    """Sizes of a random example."""

    shape: tuple[int, ...]
    periodic: tuple[bool, ...]
    heads: int
    dim: int
    num_prefix_tokens: int
    masked: bool
    max_distance: int
    seed: int


@st.composite
def sizes(draw: st.DrawFn) -> Size:
    num_axes = draw(st.integers(1, 3))
    longest = {1: 13, 2: 7, 3: 4}[num_axes]
    return Size(
        shape=tuple(draw(st.integers(1, longest)) for _ in range(num_axes)),
        periodic=tuple(draw(st.booleans()) for _ in range(num_axes)),
        heads=draw(st.integers(1, 3)),
        dim=draw(st.integers(1, 5)),
        num_prefix_tokens=draw(st.integers(0, 2)),
        masked=draw(st.booleans()),
        max_distance=draw(st.integers(1, 4)),
        seed=draw(st.integers(0, 2**16)),
    )


def attend(
    case: Case, size: Size, backend: str, dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    """Return the output and the gradient of every input tensor."""
    grid = Grid(size.shape, periodic=size.periodic)
    num_tokens = size.num_prefix_tokens + grid.num_tokens
    inputs = draw_inputs(num_tokens, heads=size.heads, dim=size.dim, seed=size.seed)
    query, key, value = (tensor.float().to(dtype).requires_grad_() for tensor in inputs)
    relative = build_relative(
        case.relative,
        kernel=case.kernel,
        heads=size.heads,
        dim=size.dim,
        num_axes=grid.num_axes,
        max_distance=size.max_distance,
    )
    kernel, kernel_leaves = with_leaves(build_kernel(case.kernel, relative, size.dim), dtype)
    leaves = {"query": query, "key": key, "value": value}
    leaves |= {f"kernel.{name}": leaf for name, leaf in kernel_leaves.items()}
    if relative is not None:
        relative, relative_leaves = with_leaves(relative, dtype)
        leaves |= {f"relative.{name}": leaf for name, leaf in relative_leaves.items()}
    key_mask = draw_mask(query.shape[0], num_tokens, size.seed) if size.masked else None
    options = {
        "kernel": kernel,
        "relative": relative,
        "grid": grid,
        "num_prefix_tokens": size.num_prefix_tokens,
    }
    output = attention(query, key, value, key_mask=key_mask, backend=backend, **options)
    assert output.dtype == dtype
    # The cotangent is not constant, so that no gradient vanishes by symmetry.
    cotangent = (
        torch.cos(torch.arange(output.numel(), dtype=torch.float64, device=DEVICE))
        .reshape(output.shape)
        .to(dtype)
    )
    gradients = torch.autograd.grad(
        (output * cotangent).sum(), list(leaves.values()), allow_unused=True
    )
    results = {"output": output.detach()}
    for name, leaf, gradient in zip(leaves, leaves.values(), gradients, strict=True):
        results[name] = torch.zeros_like(leaf) if gradient is None else gradient
    return results


def supports_periodic_axes(case: Case, size: Size) -> bool:
    """Return True if the backend supports the periodic axes of the grid, as documented."""
    if not any(size.periodic):
        return True
    kind = None if case.relative is None else RELATIVES[case.relative]
    if kind is not None and issubclass(kind, JointSinusoidalBias):
        return False
    if kind is not None and issubclass(kind, DecayRelativeKernel):
        return case.backend != "linear"
    wrapped = [side for side, periodic in zip(size.shape, size.periodic, strict=True) if periodic]
    if kind is WindowBias:
        return all(2 * min(size.max_distance, 2) < side for side in wrapped)
    if kind is not None and issubclass(kind, ClippedDistanceBias):
        return all(2 * (size.max_distance - 1) < side for side in wrapped)
    return True


@parametrize_by_kernel(FAST_CASES)
@settings(max_examples=5)
@given(size=sizes())
def test_values_and_gradients_equal_the_dense_backend(case: Case, size: Size):
    if (
        case.relative == "rotary"
        and size.dim == 1
        and case.kernel in ("squared_relu", "focused", "relu", "elu")
    ):
        size = replace(size, dim=2)  # rotary rotates pairs of features
    elif case.relative == "rotary" and case.kernel in RANDOM_KERNELS:
        size = replace(size, dim=max(size.dim, 3))  # so that there are ⌊3 ln 3⌋ = 3 random features
    if not supports_periodic_axes(case, size):
        with pytest.raises(
            ValueError, match=r"grid must be .*got Grid|backend must be|no periodic"
        ):
            attend(case, size, case.backend)
        return
    reference, fast = attend(case, size, "dense"), attend(case, size, case.backend)
    for name, expected in reference.items():
        assert relative_error(fast[name], expected) <= TOLERANCE, name


@parametrize_by_kernel(SUPPORTED_CASES, shape=FLOAT32_SHAPES)
def test_float32_is_close_to_float64(case: Case, shape: tuple[int, ...]):
    size = Size(
        shape,
        (False,) * len(shape),
        heads=3,
        dim=5,
        num_prefix_tokens=1,
        masked=True,
        max_distance=4,
        seed=0,
    )
    reference = attend(case, size, "dense")
    single = attend(case, size, case.backend, torch.float32)
    for name, expected in reference.items():
        change = relative_error(single[name].double(), expected)
        assert change <= (FLOAT32_SIGNED_BAND if is_signed(case) else FLOAT32_BAND), name


@parametrize_by_kernel([case for case in FAST_CASES if not is_signed(case)])
def test_large_queries_and_keys_are_accurate(case: Case):
    # Features of large vectors differ by orders of magnitude, so differences of sums would cancel.
    relative = build_relative(
        case.relative, kernel=case.kernel, heads=3, dim=16, num_axes=2, max_distance=3
    )
    kernel = build_kernel(case.kernel, relative, 16)
    query, key, value = (tensor.float() for tensor in draw_inputs(36, dim=16, scale=1.0))

    def attend(factor: float, dtype: torch.dtype, backend: str) -> Tensor:
        inputs = (factor * query.to(dtype), factor * key.to(dtype), value.to(dtype))
        options = {
            "kernel": kernel,
            "relative": relative,
            "grid": Grid((5, 7)),
            "num_prefix_tokens": 1,
        }
        return attention(*inputs, **options, backend=backend).double()

    for factor, dtype, band in ((3, torch.float32, 1e-5), (30, torch.float64, 1e-8)):
        reference, fast = (
            attend(factor, torch.float64, "dense"),
            attend(factor, dtype, case.backend),
        )
        assert relative_error(fast, reference) <= band, (factor, dtype)


def boundary_parameters(relative: RelativeKernel) -> list[dict[str, Tensor]]:
    """Return the tensors of a relative kernel with one of them set to 0, and with all set to 0."""
    tensors = {
        name: tensor for name, tensor in vars(relative).items() if isinstance(tensor, Tensor)
    }
    zeros = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    cases = [*({**tensors, name: zeros[name]} for name in tensors), zeros]
    return cases[:-1] if isinstance(relative, Fourier) else cases  # Fourier needs a positive weight


@pytest.mark.parametrize("grid", [Grid(70), Grid((7, 11))], ids=str)
@pytest.mark.parametrize("name", RELATIVES)
def test_gradients_of_zero_parameters_equal_dense(name: str, grid: Grid):
    kernel = "positive" if name in ("rotation_joint", "clipped_features") else "squared_relu"
    relative = make_relative_kernel(name, heads=2, dim=4, num_axes=grid.num_axes, kernel=kernel)
    tokens = [
        tensor.requires_grad_() for tensor in draw_inputs(grid.num_tokens, dim=4, heads=2, batch=1)
    ]
    for parameters, is_causal in itertools.product(boundary_parameters(relative), (False, True)):
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in parameters.items()}
        options = {
            "kernel": kernel,
            "grid": grid,
            "is_causal": is_causal,
            "relative": replace(relative, **leaves),
        }
        results = {}
        for backend in BACKENDS[1:]:
            try:
                output = attention(*tokens, **options, backend=backend)
            except ValueError:  # the backend does not support this kernel
                assert backend != "dense"
                continue
            gradients = torch.autograd.grad(
                output.sin().sum(), [*tokens, *leaves.values()], allow_unused=True
            )
            results[backend] = [output, *gradients]
        expected = results.pop("dense")
        for backend, actual in results.items():
            for gradient, reference in zip(actual, expected, strict=True):
                if gradient is not None and reference is not None:
                    assert (gradient - reference).abs().max() <= 1e-9 * (
                        1 + reference.abs().max()
                    ), (backend, parameters)
