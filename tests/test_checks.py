import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from teka.checks import (
    BOOL_DTYPES,
    INTEGER_DTYPES,
    check_dense_tensor,
    check_device,
    check_evaluation_mode,
    check_flags,
    check_image_size,
    check_iterable,
    check_name,
    check_names,
    check_nonnegative,
    check_number,
    check_path,
    check_sizes,
    check_stride,
    check_tensor,
    is_integer,
    is_number,
    is_positive,
)
from tests.raising import raises_for


def test_float_tensor_of_the_shape_is_accepted():
    for dtype in [torch.float16, torch.bfloat16, torch.float32, torch.float64]:
        for batch in (0, 1, 3):
            check_tensor("query", torch.zeros(batch, 4, 5, dtype=dtype), "batch", "tokens", 5)


def test_wrong_tensors_are_errors():
    for tensor, message in [
        ([[1.0]], r"query must be a tensor of a floating-point dtype.*got an object of type list"),
        (np.zeros((1, 4, 5)), r"query must be a tensor.*got an object of type ndarray"),
        (None, r"query must be a tensor.*got None"),
        (
            torch.zeros(1, 4, 5, dtype=torch.int64),
            r"query must be of a floating-point dtype.*got torch.int64",
        ),
        (
            torch.zeros(1, 4, 5, dtype=torch.complex64),
            r"query must be of a floating-point dtype.*got torch.complex64",
        ),
        (torch.zeros(4, 5), r"query must have shape \(batch, tokens, 5\), got \(4, 5\)."),
        (torch.zeros(1, 4, 6), r"query must have shape \(batch, tokens, 5\), got \(1, 4, 6\)."),
        (torch.zeros(1, 0, 5), r"query must have .* where only batch may be 0.*got \(1, 0, 5\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            check_tensor("query", tensor, "batch", "tokens", 5)


def test_check_of_each_group_of_dtypes():
    check_tensor("mask", torch.ones(3, dtype=torch.bool), 3, dtypes=BOOL_DTYPES)
    check_tensor("lengths", torch.ones(3, dtype=torch.uint8), 3, dtypes=INTEGER_DTYPES)
    check_tensor("labels", torch.ones(3, dtype=torch.complex64), 3, dtypes=None)
    with pytest.raises(ValueError, match=r"mask must be of dtype torch.bool.*got torch.float32"):
        check_tensor("mask", torch.ones(3), 3, dtypes=BOOL_DTYPES)
    with pytest.raises(ValueError, match=r"lengths must be of an integer dtype.*got torch.bool"):
        check_tensor("lengths", torch.ones(3, dtype=torch.bool), 3, dtypes=INTEGER_DTYPES)


def test_negative_elements_are_errors_if_they_can_be_read(unchecked_annotations: None):
    negative = torch.tensor([1.0, -0.25])
    check_nonnegative("amplitude", negative.abs())
    with pytest.raises(
        ValueError, match=r"the smallest element of amplitude must be at least 0.*got -0.25"
    ):
        check_nonnegative("amplitude", negative)
    check_nonnegative("amplitude", negative.to("meta"))
    check_nonnegative("amplitude", negative.requires_grad_() * 2)

    def doubled(row: Tensor) -> Tensor:
        check_nonnegative("amplitude", row)
        return 2 * row

    assert torch.equal(vmap(doubled)(negative[None]), 2 * negative[None])
    compiled = torch.compile(doubled, fullgraph=True, backend="eager")
    assert torch.equal(compiled(negative.detach()), 2 * negative.detach())


def test_is_number_accepts_all_real_numbers():
    for number in [1, 0.5, -2, Fraction(1, 3), np.float32(2), np.int64(3)]:
        assert is_number(number)
        assert is_positive(number) == (number != -2)


def test_is_number_rejects_other_values():
    for other in [
        None,
        "1",
        True,
        math.nan,
        math.inf,
        1e300,
        10**400,
        1j,
        torch.tensor(1.0),
        np.ones(1),
        [1],
    ]:
        assert not is_number(other)
        assert not is_positive(other)


def test_numbers_that_underflow_are_not_positive():
    assert is_number(1e-300)
    assert not is_positive(1e-300)
    assert not is_positive(0.0)


def test_wrong_size_is_an_error():
    for size, message in [
        (0, "waves must be at least 1.*got 0"),
        (-1, "waves must be at least 1.*got -1"),
        (2.0, "waves must be a whole number.*got 2.0"),
        (True, "waves must be a whole number.*got True"),
        ("3", "waves must be a whole number.*got '3'"),
        (None, "waves must be a whole number.*got None"),
        (torch.tensor(3), r"waves must be a whole number.*got tensor\(3\)"),
        (2**62, "waves must be a whole number up to 2147483647"),
    ]:
        with pytest.raises(ValueError, match=message):
            check_sizes({"heads": np.int64(1), "waves": size})
        assert not is_integer(size) or size != 1


def test_size_may_be_zero_or_none():
    check_sizes({"num_prefix_tokens": 0}, 0)
    check_sizes({"dim_head": None}, or_none=True)


def test_flags_are_booleans():
    for flag in [0, 1, None, "yes", np.bool_(True)]:
        check_flags({"causal": True, "gate": False})
        with pytest.raises(ValueError, match=r"gate must be True or False"):
            check_flags({"causal": True, "gate": flag})


def test_unknown_name_is_an_error():
    for name in ["dens", 3, None, ["dense"], np.zeros(2), {"dense"}]:
        check_name("backend", "dense", ("auto", "dense"))
        with pytest.raises(ValueError, match=r"backend must be one of 'auto', 'dense'"):
            check_name("backend", name, ("auto", "dense"))


def test_one_stride_applies_to_every_axis():
    assert check_stride(2, 3) == (2, 2, 2)
    assert check_stride([2, 3], 2) == (2, 3)


def test_wrong_stride_is_an_error(unchecked_annotations):
    for stride in [0, (2, 2, 2), (2, 0), (1.5, 2), True, b"ab", bytearray(b"ab")]:
        with raises_for(stride, ValueError, match="stride must be"):
            check_stride(stride, 2)


def test_image_size_is_a_side_or_height_and_width():
    assert check_image_size("size", 5) == (5, 5)
    assert check_image_size("size", (5, 7)) == check_image_size("size", [5, 7]) == (5, 7)


def test_wrong_image_sizes_are_errors(unchecked_annotations: None):
    for size in [2, (3, 2), (), (5,), (5, 5, 5), (True, 5), (5.0, 5)]:
        with pytest.raises(ValueError, match=r"size must be .* each at least 3 pixels.*got"):
            check_image_size("size", size, smallest=3)
        with pytest.raises(
            ValueError, match=r"size must be at most 50,000,000 pixels.*got 1000000"
        ):
            check_image_size("size", 1_000_000)


def test_check_number_accepts_only_numbers_within_limits():
    for number in (0.5, 1, np.float32(0.5), np.int64(1), Fraction(1, 2)):
        check_number("share", number, "a share", low=0, high=1, exclude=(0,))
    check_number("budget", math.inf, "seconds", high=math.inf)
    for number in (
        0,
        0.0,
        1.5,
        -1,
        math.nan,
        math.inf,
        True,
        np.bool_(True),
        "0.5",
        None,
        10**400,
        torch.tensor(0.5),
    ):
        with raises_for(number, ValueError, match=r"share must be a share"):
            check_number("share", number, "a share", low=0, high=1, exclude=(0,))
    with pytest.raises(ValueError, match=r"tolerance must be .*got inf"):
        check_number("tolerance", math.inf, "a finite number", low=0)


def test_check_device_accepts_only_devices_that_compute():
    assert check_device("cpu") == torch.device("cpu")
    for device in ("meta", "warp", "cuda:99", None, 1.5, ["cpu"], 10**40):
        with raises_for(device, ValueError, match=r"device must be a device"):
            check_device(device)


def test_tensor_without_elements_is_an_error(unchecked_annotations: None):
    check_dense_tensor("images", torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"images must be a tensor.*got an object of type list"):
        check_dense_tensor("images", [1.0])
    for tensor, pattern in (
        (torch.zeros(2, device="meta"), r"images.device must be .*'meta'"),
        (torch.zeros(2).to_sparse(), r"images.layout must be .*got torch.sparse_coo"),
        (torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]), "images.layout must be"),
        (torch.zeros(2).to(torch.float8_e5m2), r"images.dtype must be .*got torch.float8_e5m2"),
    ):
        with pytest.raises(ValueError, match=pattern):
            check_dense_tensor("images", tensor)


def test_check_sequence_and_check_names_reject_wrong_lists():
    assert check_iterable("names", (name for name in "ab"), "names") == ["a", "b"]
    for values in ("ab", {"a": 1}, {"a"}, 3, None, np.array(1), torch.tensor(1), range(10**9)):
        with raises_for(values, ValueError, match=r"names must be a list of names"):
            check_names("names", values)
    with pytest.raises(ValueError, match=r"names must be a list of names.*got 3"):
        check_names("names", ["a", 3])
    with pytest.raises(ValueError, match="Did you mean 'edge'"):
        check_names("names", ["edg"], ("edge", "interior"))


def test_check_path_rejects_invalid_paths():
    assert check_path("path", "a/b") == Path("a/b")
    for path in ("", "a\0b", 3, None, b"a", "a" * 256):
        with raises_for(path, ValueError, match=r"path must be a path"):
            check_path("path", path)


def test_module_in_evaluation_mode_and_function_are_accepted():
    check_evaluation_mode("function", nn.Sequential(nn.Dropout()).eval())
    check_evaluation_mode("function", torch.sin)


def test_error_of_a_module_in_training_mode_suggests_eval():
    with pytest.raises(
        ValueError,
        match=r"function must be in evaluation mode, got a Dropout in training mode.*\.eval\(\)",
    ):
        check_evaluation_mode("function", nn.Dropout())


def test_error_names_the_submodule_in_training_mode():
    model = nn.Sequential(nn.Identity(), nn.Dropout()).eval()
    model[1].train()
    with pytest.raises(ValueError, match=r"got a Sequential, whose part '1' is in training mode"):
        check_evaluation_mode("predict", model)


def test_method_of_a_module_in_training_mode_is_an_error():
    with pytest.raises(ValueError, match="Dropout"):
        check_evaluation_mode("function", nn.Dropout().forward)
