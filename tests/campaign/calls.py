"""Fuzzed calls of teka.audit, teka.convert and teka.data, whose errors must name an argument."""

import contextlib
import decimal
import fractions
import inspect
import io
import math
import random
import re
import resource
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import teka.audit
import teka.convert
import teka.data
from teka import Grid
from teka.audit import AuditSettings, Movement, Responses, measure_responses
from teka.audit.caveats import Caveat
from teka.audit.measure.noise import noise_floor
from teka.audit.settings import PARTS
from teka.nn import Attention
from teka.testing import assert_consistent
from tests.campaign.outcome import Tally, TooLong

SECONDS = 10.0  # No valid call needs that long, because all inputs are small.
BYTES = 3 * 2**30  # Additional address space for a call.
SHIFTS = [(0, 0), (0, 1), (1, 0)]
CIRCULAR = Movement("circular")


def images() -> Tensor:
    return torch.rand(12, 1, 4, 6, generator=torch.Generator().manual_seed(0))


def labels() -> Tensor:
    return torch.arange(12) % 2


def classify(batch: Tensor) -> Tensor:
    """Return logits of the brighter half of an image."""
    return torch.stack([batch[..., :3].mean((1, 2, 3)), batch[..., 3:].mean((1, 2, 3))], dim=1)


def network() -> nn.Module:
    layers = (
        nn.Conv2d(1, 2, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2, 2),
    )
    return nn.Sequential(*layers).eval()


def responses() -> Responses:
    return measure_responses(
        classify, images(), [*SHIFTS, (0, 2), (0, 3)], CIRCULAR, labels=labels()
    )


def attention() -> nn.Module:
    return teka.convert.attention_from_convolution(nn.Conv2d(2, 3, 3, padding=1))


def encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)


def hedgehog_encoder() -> nn.Module:
    model = encoder()
    teka.convert.replace_attention(model, kernel="hedgehog", relative=None)
    return model


def findings() -> object:
    return teka.audit.locate_layers(network(), images(), [(0, 1), (2, 0)], CIRCULAR)


def report() -> Any:
    settings = AuditSettings(SHIFTS, parts=(), num_examples=1, num_resamples=40)
    return teka.audit.audit(classify, images(), settings=settings)


def split() -> object:
    return teka.data.Split(images(), labels())


@dataclass(frozen=True)
class Entry:
    """A public function or method with valid arguments.

    Args:
        call: The function or method, which is called with keyword arguments.
        good: Function that returns valid arguments.
    """

    call: Callable[..., object]
    good: Callable[[], dict[str, Any]]

    @property
    def argument_names(self) -> list[str]:
        """Return the names of arguments without callbacks, because errors of a callback are not caught."""
        parameters = inspect.signature(self.call).parameters.values()
        named = [
            one.name
            for one in parameters
            if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        ]
        return sorted({*self.good(), *named} - {"progress", "on_result"})


def method_entry(make: Callable[[], Any], method: str, **good: Callable[[], Any]) -> Entry:
    """Return the entry of a method of a new object."""
    return Entry(getattr(make(), method), lambda: {name: value() for name, value in good.items()})


def entries() -> dict[str, Entry]:
    """Return all public functions and classes of the packages by name, and the helpers for tests."""
    a, d = teka.audit, teka.data
    moved = {"shifts": SHIFTS, "movement": CIRCULAR}
    quick = {"settings": AuditSettings(SHIFTS, parts=(), num_examples=1, num_resamples=40)}
    found: dict[str, Callable[[], dict[str, Any]]] = {
        "audit.audit": lambda: {"model": classify, "images": images(), "labels": labels(), **quick},
        "audit.AuditSettings": lambda: {"modes": ("circular",), "parts": PARTS, "layers": ["0"]},
        "audit.AuditReport": lambda: {
            key: getattr(report(), key) for key in a.AuditReport.__dataclass_fields__
        },
        "audit.Estimate": lambda: {
            "value": 0.5,
            "lower": 0.4,
            "upper": 0.6,
            "confidence": 0.95,
            "method": "wilson",
        },
        "audit.Movement": lambda: {"mode": "canvas", "canvas_size": 8},
        "audit.Responses": lambda: {
            "movement": CIRCULAR,
            "shifts": ((0, 0),),
            "output": "dense",
            "evaluated": torch.ones(1, 2, dtype=torch.bool),
            "error_squared": torch.zeros(1, 2),
            "norm_squared": torch.ones(1, 2),
        },
        "testing.assert_permutation_equivariant": lambda: {
            "function": torch.tanh,
            "tokens": torch.rand(2, 4, 3),
            "permutations": [(1, 0, 2, 3)],
        },
        "testing.assert_equivariant": lambda: {
            "function": torch.tanh,
            "inputs": images(),
            "shifts": SHIFTS,
        },
        "audit.axis_shifts": lambda: {"max_shift": 2},
        "audit.locate_layers": lambda: {"module": network(), "images": images(), **moved},
        "audit.compare_responses": lambda: {
            "first": responses(),
            "second": responses(),
            "num_flips": 40,
        },
        "testing.equivariance_error": lambda: {
            "function": torch.tanh,
            "inputs": images(),
            "shifts": SHIFTS,
        },
        "audit.measure_responses": lambda: {
            "function": classify,
            "images": images(),
            **moved,
            "labels": labels(),
        },
        "audit.paste_on_canvas": lambda: {"images": images(), "canvas_size": 8},
        "testing.permutation_error": lambda: {
            "function": torch.tanh,
            "tokens": torch.rand(2, 4, 3),
            "permutations": [(1, 0, 2, 3)],
        },
        "audit.random_permutations": lambda: {"num_tokens": 4, "number": 2},
        "audit.write_page": lambda: {"reports": [report()], "path": "page.html"},
        "audit.square_shifts": lambda: {"max_shift": 2},
        "audit.summarize": lambda: {"responses": responses(), "num_resamples": 40},
        "audit.translate": lambda: {"images": images(), "shift": (0, 1), "mode": "circular"},
        "audit.wilson_interval": lambda: {"successes": 3, "trials": 4},
        "convert.FixReport": lambda: {"fixed": {"blur": ("0",)}, "left": {"blur": {}}},
        "convert.ReplacementReport": lambda: {
            "kernels": "a",
            "replaced": {"a": "b"},
            "left": {},
            "num_kept": 1,
            "num_new": 1,
        },
        "convert.attention_from_convolution": lambda: {
            "convolution": nn.Conv2d(2, 3, 3, padding=1)
        },
        "convert.conversion_error_bound": lambda: {
            "convolution": nn.Conv2d(2, 3, 3, padding=1),
            "precision": 40.0,
            "largest_input": 1.0,
        },
        "convert.convolution_from_attention": lambda: {
            "attention": attention(),
            "grid": Grid((5, 6)),
        },
        "convert.distill_attention": lambda: {
            "model": hedgehog_encoder(),
            "batches": [torch.rand(2, 4, 8)],
        },
        "convert.head_offsets": lambda: {"attention": attention().attention, "grid": Grid((5, 6))},
        "convert.low_rank_convolution": lambda: {
            "convolution": nn.Conv2d(2, 3, 3, padding=1),
            "rank": 1,
        },
        "convert.fix": lambda: {"model": network(), "layers": findings(), "fixes": ["circular"]},
        "convert.precision_for_tolerance": lambda: {"tolerance": 0.1, "num_axes": 2},
        "convert.replace_attention": lambda: {
            "model": encoder(),
            "kernel": "elu",
            "relative": "decay",
            "num_axes": 1,
        },
        "data.Dataset": lambda: {
            "name": "arrays",
            "train": split(),
            "validation": split(),
            "test": split(),
            "num_classes": 2,
        },
        "data.HorizontalFlip": dict,
        "data.Normalize": lambda: {"mean": (0.5,), "deviation": (0.5,)},
        "data.PictureFiles": lambda: {"paths": [], "in_channels": 1, "image_size": (2, 3)},
        "data.RandomShift": lambda: {"max_shift": 1},
        "data.Split": lambda: {"images": images(), "labels": labels()},
        "data.download": lambda: {"name": "digits", "data_dir": "downloads"},
        "data.from_arrays": lambda: {
            "images": np.zeros((20, 5, 6), dtype=np.uint8),
            "labels": np.arange(20) % 2,
        },
        "data.load": lambda: {"name": "digits"},
        "data.lossless_selection": lambda: {
            "images": images(),
            "labels": labels(),
            "class_index": None,
            "margin": 0,
        },
        "data.resize_bilinear": lambda: {
            "images": torch.zeros(2, 1, 4, 6, dtype=torch.uint8),
            "image_size": 3,
        },
    }
    made = {name: Entry(_public_object(name), good) for name, good in found.items()}
    made |= {
        "testing.assert_consistent": Entry(
            assert_consistent,
            lambda: {"model": classify, "images": images(), "shifts": 1, "minimum": 0},
        ),
        "audit.noise_floor": Entry(
            noise_floor, lambda: {"function": network(), "images": images()}
        ),
        "audit.Caveat": Entry(
            Caveat, lambda: {"name": "few", "severity": "note", "message": "few"}
        ),
        "audit.Movement.prepare_images": method_entry(
            lambda: CIRCULAR, "prepare_images", images=images
        ),
        "audit.AuditReport.number": method_entry(report, "number", metric=lambda: "consistency"),
        "audit.AuditReport.from_dict": method_entry(
            report, "from_dict", content=lambda: report().to_dict()
        ),
        "audit.AuditReport.write": method_entry(report, "write", path=lambda: "report.json"),
        "audit.AuditReport.read": method_entry(report, "read", path=lambda: "report.json"),
        "convert.BorderedAttention": method_entry(
            attention, "forward", tokens=lambda: torch.rand(1, 30, 2), grid=lambda: Grid((5, 6))
        ),
        "data.RandomShift.call": method_entry(
            lambda: d.RandomShift(1), "__call__", images=images, generator=torch.Generator
        ),
        "data.HorizontalFlip.call": method_entry(
            d.HorizontalFlip, "__call__", images=images, generator=torch.Generator
        ),
        "data.Normalize.call": method_entry(
            lambda: d.Normalize((0.5,), (0.5,)), "__call__", images=images
        ),
    }
    return made


def _public_object(name: str) -> Callable[..., object]:
    package, _, called = name.partition(".")
    return getattr(getattr(teka, package), called)


def wrong_values() -> list[Any]:
    """Return values that are invalid for most arguments."""
    numbers = [
        -1,
        0,
        1,
        2,
        3,
        1.5,
        -0.5,
        math.nan,
        math.inf,
        -math.inf,
        1e300,
        1e-300,
        2**31,
        2**63,
        -(2**63),
        10**400,
    ]
    numbers += [
        True,
        False,
        1j,
        np.int64(2),
        np.float32(0.5),
        np.float64(math.nan),
        np.bool_(True),
        decimal.Decimal(1),
    ]
    numbers += [fractions.Fraction(1, 2), torch.tensor(2), torch.tensor(0.5), np.array(1)]
    words = [
        "",
        "nothing",
        "1",
        "0.5",
        "cpu",
        "meta",
        "cuda:99",
        "circular",
        "canvas",
        "crop",
        "a" * 300,
        "\x00",
        b"ab",
    ]
    rows = [
        [],
        [1, 2],
        [1.5, 2.5],
        (0, 1),
        [(0, 0), (0, 1)],
        [(0, 0), (0, 99)],
        [(0, 0), (0, 0.5)],
        [(1,)],
        [[]],
    ]
    rows += [
        {},
        {"a": 1},
        {1, 2},
        (None,),
        ["0", "1"],
        [None],
        [math.nan, 1],
        range(3),
        range(10**9),
        [(0, 2**70)],
    ]
    rows += [
        [2**63, 2**63],
        (10**5, 10**5),
        [True, False],
        np.zeros(2),
        np.ones((2, 6)),
        np.array(["a"]),
    ]
    others = [
        None,
        object(),
        Attention,
        print,
        nn.Linear(2, 2),
        Grid(5),
        CIRCULAR,
        torch.float64,
        torch.device("cpu"),
    ]
    others += [
        iter([(0, 0), (0, 1)]),
        lambda *_, **__: None,
        Path("nothing"),
        torch.Generator(),
        AuditSettings(),
    ]
    others += [
        torch.zeros(0),
        torch.zeros(2),
        torch.zeros(2, 1, 4, 6),
        torch.zeros(2, 1, 4, 6, dtype=torch.long),
    ]
    return numbers + words + rows + others


CHANGES: list[Callable[[Tensor], Any]] = [
    *(
        Tensor.double,
        Tensor.half,
        Tensor.bfloat16,
        Tensor.long,
        Tensor.bool,
        Tensor.tolist,
        Tensor.numpy,
    ),
    *(
        lambda one: one.to(torch.complex64),
        lambda one: one.to(torch.float8_e4m3fn),
        lambda one: one.to(torch.int8),
    ),
    *(
        lambda one: one[None],
        lambda one: one[0],
        lambda one: one[:0],
        lambda one: one[..., :0],
        lambda one: one[:1],
    ),
    *(
        lambda one: one[..., :-1],
        lambda one: torch.cat([one, one]),
        lambda one: -1 - one.float(),
        lambda one: one * 0,
    ),
    *(
        lambda one: one.to("meta"),
        lambda one: one.to_sparse(),
        lambda one: one.float().requires_grad_(),
    ),
    *(
        lambda one: torch.nested.nested_tensor(list(one)),
        lambda one: one.float() * math.nan,
        lambda one: one * 1e38,
    ),
    lambda one: torch.quantize_per_tensor(one.float(), 0.1, 0, torch.quint8),
    lambda one: one[:1].expand(3_000, *one.shape[1:]),
    lambda one: nn.Parameter(one.float()),
]


def fuzz_public_calls(
    number: int, seed: int, packages: tuple[str, ...] = ("audit", "convert", "data")
) -> Tally:
    """Call public functions with one or two wrong arguments, and count the unclear errors.

    Args:
        number: Number of calls.
        seed: Seed of the arguments.
        packages: Packages whose functions are called.
    """
    tally, source, known = (
        Tally("fuzzed calls of audit, convert and data"),
        random.Random(seed),
        entries(),
    )
    names = sorted(name for name in known if name.startswith(packages))
    for index in range(number):
        name = names[index % len(names)]
        tally.add(*_call_with_wrong_arguments(name, known[name], source))
    return tally


def _call_with_wrong_arguments(
    name: str, entry: Entry, source: random.Random
) -> tuple[str, str | None]:
    torch.manual_seed(0)
    arguments, argument_names = entry.good(), entry.argument_names
    # An entry without arguments is called without a wrong one.
    wrong = source.sample(argument_names, min(source.choice((1, 1, 2)), len(argument_names)))
    for argument in wrong:
        good = arguments.get(argument)
        if isinstance(good, Tensor) and source.random() < 0.6:
            arguments[argument] = source.choice(CHANGES)(good.detach())
        else:
            arguments[argument] = source.choice(wrong_values())
    start = time.perf_counter()
    try:
        with _limit_time_and_memory():
            entry.call(**arguments)
        kind, problem = "done", None
    except ValueError as error:
        # The error may name any argument, because a wrong one may not fit another.
        named = any(
            re.search(rf"\b{re.escape(argument)}\b", str(error)) for argument in argument_names
        )
        kind, problem = "refused", None if named else f"names no argument: {error}"
    except AssertionError as error:
        # A failed assertion of teka.testing is a valid result if it has a message.
        kind, problem = (
            "refused",
            None if "assert" in name and str(error) else f"AssertionError: {error}",
        )
    except (Exception, TooLong) as error:
        kind, problem = "unclear", f"{type(error).__name__}: {error}"
    seconds = time.perf_counter() - start
    if problem is None and seconds > SECONDS:
        problem = f"took {seconds:.0f} s"
    if problem is None:
        return kind, None
    shown = ", ".join(f"{argument}={_describe(arguments[argument])}" for argument in wrong)
    return kind, f"{name}({shown}): {problem[:500]}"


def _describe(value: object) -> str:
    if isinstance(value, Tensor):
        return (
            f"{type(value).__name__} {value.dtype} {value.layout} {value.device} {value.ndim} axes"
        )
    with contextlib.suppress(ValueError):  # An integer with too many digits.
        return repr(value)[:80]
    return type(value).__name__


@contextlib.contextmanager
def _limit_time_and_memory() -> Iterator[None]:
    """Limit the time and the memory of calls in this context, and hide their output."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    size = (
        int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
        * resource.getpagesize()
    )
    limit = size + BYTES if hard == resource.RLIM_INFINITY else min(size + BYTES, hard)
    signal.signal(signal.SIGALRM, _raise_too_long)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _raise_too_long(*_: object) -> None:
    raise TooLong(f"more than {SECONDS:.0f} s")
