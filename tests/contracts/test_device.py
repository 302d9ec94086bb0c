"""All tensors are created on the device of the input, tested on the meta device.

The meta device stands for a GPU: operations on tensors of two devices are errors. FlexAttention is
replaced by its formula.
"""

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from teka import Grid, precision
from teka.functional import KERNELS, RELATIVES, JointSinusoidalBias, attention, positions
from teka.functional.kernels.content_kernel import ContentKernel
from teka.functional.relative.biases import DecayRelativeKernel
from teka.functional.relative.relative_kernel import RelativeKernel
from teka.models import Performer
from teka.models.performer_config import POOLS, POSITIONS
from teka.nn import Attention
from tests.contracts import cases
from tests.contracts.cases import (
    CAUSAL_CASES,
    EXHAUSTIVE,
    FAST_CAUSAL_CASES,
    SUPPORTED_CASES,
    Case,
    build_kernel,
    build_relative,
    draw_inputs,
    draw_mask,
    flex_reference,
    for_each,
    parametrize_by_kernel,
    with_leaves,
)

TEST_DEVICE = "meta"
# Features and positions are computed separately, so that not every pair is tested.
TESTED_CASES = [
    case
    for case in SUPPORTED_CASES
    if EXHAUSTIVE
    or case.kernel == "squared_relu"
    or case.relative in (None, "rotary", "rotation_joint", "clipped")
]
EVERY_PAIR = [case for case in CAUSAL_CASES if case.kernel == "softmax"]
flex = import_module("teka.functional.backends.flex_attention")


# True for operations without side effects, and the shape, stride and dtype of their results.
PURE: dict[Any, bool] = {}
RESULTS: dict[Any, tuple[torch.Size, tuple[int, ...], torch.dtype] | None] = {}


def signature(argument: Any) -> Hashable:
    """Return everything that the shape of a result can depend on."""
    if isinstance(argument, Tensor):
        return argument.shape, argument.stride(), argument.dtype, argument.device
    if isinstance(argument, (list, tuple)):
        return tuple(map(signature, argument))
    return type(argument), argument


class CheckDevices(TorchDispatchMode):
    """A mode that checks devices. Every boolean reads as True and every number as 1."""

    has_float64 = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = self.call(func, args, kwargs or {})
        for tensor in () if self.has_float64 else tree_leaves(result):
            if (
                isinstance(tensor, Tensor)
                and tensor.device.type == TEST_DEVICE
                and tensor.dtype in (torch.float64, torch.complex128)
            ):
                raise TypeError(f"{func}: a tensor of {tensor.dtype}")
        return result

    def call(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Call an operation, or return a tensor like the result of an earlier, equal call.

        PyTorch computes shapes of meta tensors in Python, which takes most of the time.
        """
        if func not in PURE:
            schema = func._schema
            PURE[func] = schema.name not in (
                "aten::_local_scalar_dense",
                "aten::nonzero",
            ) and not any(argument.alias_info for argument in (*schema.arguments, *schema.returns))
        if not PURE[func] or kwargs.get("generator") is not None:
            return self.compute(func, args, kwargs)
        key = (
            func,
            tuple(map(signature, args)),
            tuple(kwargs),
            tuple(map(signature, kwargs.values())),
        )
        if key not in RESULTS:
            result = self.compute(func, args, kwargs)
            is_known = isinstance(result, Tensor) and result.device.type == TEST_DEVICE
            RESULTS[key] = (result.shape, result.stride(), result.dtype) if is_known else None
            return result
        known = RESULTS[key]
        if known is None:
            return self.compute(func, args, kwargs)
        shape, stride, dtype = known
        return torch.empty_strided(shape, stride, dtype=dtype, device=TEST_DEVICE)

    def compute(self, func: Any, args: tuple, kwargs: dict) -> Any:
        aten = torch.ops.aten
        if func is aten._local_scalar_dense.default:
            return args[0].dtype == torch.bool or 1
        if func is aten.nonzero.default:
            return args[0].new_zeros(1, args[0].ndim, dtype=torch.long)
        tensors = [
            tensor
            for tensor in tree_leaves((args, kwargs))
            if isinstance(tensor, Tensor) and tensor.ndim
        ]
        # Copies and indices may come from another device.
        may_differ = (aten.copy_.default, aten.index.Tensor, aten.index_put_.default)
        if func not in may_differ and len({tensor.device for tensor in tensors}) > 1:
            raise RuntimeError(f"{func}: tensors of two devices")
        if func is aten.index.Tensor and args[1][0] is not None and args[1][0].dtype == torch.bool:
            return args[0].reshape(-1, *args[0].shape[args[1][0].ndim :])
        device = kwargs.get("device")
        if (
            func is aten._to_copy.default
            and args[0].device.type == TEST_DEVICE
            and device == torch.device("cpu")
        ):
            return torch.ones(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        if kwargs.get("generator") is not None and kwargs["generator"].device != device:
            raise RuntimeError(f"{func}: a generator of another device")
        return func(*args, **kwargs)


@pytest.fixture(autouse=True)
def check_devices_in_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[CheckDevices]:
    monkeypatch.setattr(cases, "DEVICE", TEST_DEVICE)
    # The test device pretends to be a GPU.
    monkeypatch.setattr(
        torch.Tensor, "is_cuda", property(lambda self: self.device.type == TEST_DEVICE)
    )
    monkeypatch.setattr(torch.Tensor, "is_meta", property(lambda self: False))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(flex, "_compiled_flex_attention", lambda: flex_reference)
    monkeypatch.setattr(flex, "MIN_PAIRS", 0)
    with CheckDevices() as mode:
        yield mode


@pytest.fixture
def without_float64(monkeypatch: pytest.MonkeyPatch, check_devices_in_test: CheckDevices) -> None:
    """Simulate a device without float64, such as Apple GPUs."""
    monkeypatch.setattr(precision, "DEVICES_WITHOUT_FLOAT64", {TEST_DEVICE})
    positions._cached_coordinates.cache_clear()
    check_devices_in_test.has_float64 = False


def check_gradients(output: Tensor, leaves: dict[str, Tensor]) -> None:
    """Check that the output and all gradients are on the device."""
    gradients = torch.autograd.grad(output.sum(), list(leaves.values()), allow_unused=True)
    assert output.device.type == TEST_DEVICE
    assert any(gradient is not None for gradient in gradients)
    for name, gradient in zip(leaves, gradients, strict=True):
        assert gradient is None or gradient.device.type == TEST_DEVICE, name


def check_attention(
    case: Case, *, masked: bool, by_name: bool, first: int, is_causal: bool
) -> None:
    kind = None if case.relative is None else RELATIVES[case.relative]
    is_bounded = kind is not None and issubclass(kind, JointSinusoidalBias | DecayRelativeKernel)
    # A named kernel has too many rings for a small periodic grid.
    grid = Grid(11) if is_causal else Grid((5, 7), periodic=not by_name and not is_bounded)
    inputs = draw_inputs(first + grid.num_tokens, dtype=torch.float32)
    leaves = {
        name: tensor.requires_grad_()
        for name, tensor in zip(("query", "key", "value"), inputs, strict=True)
    }
    kernel: str | ContentKernel = case.kernel
    relative: str | RelativeKernel | None = case.relative
    if not by_name:
        made = build_relative(
            relative, kernel=kernel, heads=3, dim=5, num_axes=grid.num_axes, max_distance=3
        )
        kernel, more = with_leaves(build_kernel(case.kernel, made, 5), torch.float32)
        leaves |= {f"kernel.{name}": leaf for name, leaf in more.items()}
        if made is not None:
            relative, more = with_leaves(made, torch.float32)
            leaves |= {f"relative.{name}": leaf for name, leaf in more.items()}
    mask = draw_mask(2, first + grid.num_tokens) if masked else None
    options = {"grid": grid, "num_prefix_tokens": first, "key_mask": mask, "is_causal": is_causal}
    check_gradients(
        attention(*inputs, kernel=kernel, relative=relative, backend=case.backend, **options),
        leaves,
    )


@parametrize_by_kernel(TESTED_CASES, masked=[False, True], by_name=[False, True], first=[0, 1])
def test_attention_creates_no_tensor_on_another_device(
    case: Case, masked: bool, by_name: bool, first: int
):
    check_attention(case, masked=masked, by_name=by_name, first=first, is_causal=False)


@parametrize_by_kernel(
    [*EVERY_PAIR, *(case for case in FAST_CAUSAL_CASES if case in TESTED_CASES)],
    masked=[False, True],
    by_name=[False, True],
)
def test_causal_attention_creates_no_tensor_on_another_device(
    case: Case, masked: bool, by_name: bool
):
    check_attention(case, masked=masked, by_name=by_name, first=0, is_causal=True)


def check_module(make: Callable[[], nn.Module], call: Callable[[nn.Module], Tensor]) -> None:
    with torch.device(TEST_DEVICE):
        module = make()
    check_gradients(call(module), dict(module.named_parameters()))


LAYERS: dict[str, dict[str, Any]] = {name: {"relative": name} for name in RELATIVES}
LAYERS |= {name: {"kernel": name, "relative": None} for name in KERNELS}


def check_layer(options: dict[str, Any]) -> None:
    if options["relative"] == "rotation_joint":
        options = {**options, "kernel": "positive"}
    tokens = torch.randn(2, 15, 8, device=TEST_DEVICE)
    check_module(
        lambda: Attention(8, 2, **options),
        lambda layer: layer(tokens, Grid((3, 5)), draw_mask(2, 15)),
    )


@for_each(LAYERS)
def test_layers_create_no_tensor_on_another_device(options: dict[str, Any]):
    check_layer(options)


@for_each(
    {name: {"position": name, "kernel": "positive", "pool": "mean"} for name in POSITIONS}
    | {name: {"pool": name, "position": "none"} for name in POOLS}
)
def test_performer_creates_no_tensor_on_another_device(options: dict[str, Any]):
    images = torch.randn(2, 2, 6, 4, device=TEST_DEVICE)
    make = partial(Performer, (6, 4), 2, 3, dim=8, depth=1, heads=2, **options)
    check_module(make, lambda model: model(images))


@pytest.mark.usefixtures("without_float64")
@for_each(LAYERS)
def test_layer_works_without_float64(options: dict[str, Any]):
    check_layer(options)


@pytest.mark.usefixtures("without_float64")
def test_polyphase_sampling_works_without_float64():
    images = torch.randn(2, 2, 8, 8, device=TEST_DEVICE)
    make = partial(
        Performer,
        8,
        2,
        3,
        dim=8,
        depth=1,
        heads=2,
        pool="mean",
        stem="polyphase",
        periodic=True,
        patch_size=4,
    )
    check_module(make, lambda model: model(images))


def test_a_tensor_on_the_cpu_is_found():
    tokens = torch.randn(2, 15, 8, device=TEST_DEVICE)
    for faulty in (lambda: tokens * torch.arange(8), lambda: tokens @ torch.eye(8)):
        with pytest.raises(RuntimeError, match=r"two (different )?devices"):
            faulty()


def test_fake_tensors_are_not_cached():
    kept = flex._cached_causal_block_mask.cache_info()
    check_attention(
        Case("softmax", "rotation", "dense"), masked=False, by_name=True, first=0, is_causal=True
    )
    assert flex._cached_causal_block_mask.cache_info() == kept
