"""Fuzzed calls of everything public in teka.audit, teka.convert and teka.data: a result, or an error with a name."""

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

SECONDS = 10.0  # that no call needs, since all that is right in it is small
BYTES = 3 * 2**30  # of address space beside what the process has
SHIFTS = [(0, 0), (0, 1), (1, 0)]
CIRCULAR = Movement("circular")


def images() -> Tensor:
    return torch.rand(12, 1, 4, 6, generator=torch.Generator().manual_seed(0))


def labels() -> Tensor:
    return torch.arange(12) % 2


def classify(batch: Tensor) -> Tensor:
    """Which half of an image is brighter."""
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


def hedgehogs() -> nn.Module:
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
    """A way into teka.

    Args:
        call: What is called, by the names of its arguments.
        good: Makes arguments that are right.
    """

    call: Callable[..., object]
    good: Callable[[], dict[str, Any]]

    @property
    def takes(self) -> list[str]:
        """Names of the arguments that may be wrong: not `progress`, since what a callback raises goes through."""
        parameters = inspect.signature(self.call).parameters.values()
        named = [
            one.name
            for one in parameters
            if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        ]
        return sorted({*self.good(), *named} - {"progress", "on_result"})


def of_method(make: Callable[[], Any], method: str, **good: Callable[[], Any]) -> Entry:
    """A method of an object that is made anew."""
    return Entry(getattr(make(), method), lambda: {name: value() for name, value in good.items()})


def entries() -> dict[str, Entry]:
    """Every public function and class of the three packages, by the package and its name; and what tests use."""
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
            "model": hedgehogs(),
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
    made = {name: Entry(_public(name), good) for name, good in found.items()}
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
        "audit.Movement.move": of_method(lambda: CIRCULAR, "place", images=images),
        "audit.AuditReport.number": of_method(report, "number", metric=lambda: "consistency"),
        "audit.AuditReport.from_dict": of_method(
            report, "from_dict", content=lambda: report().to_dict()
        ),
        "audit.AuditReport.write": of_method(report, "write", path=lambda: "report.json"),
        "audit.AuditReport.read": of_method(report, "read", path=lambda: "report.json"),
        "convert.BorderedAttention": of_method(
            attention, "forward", tokens=lambda: torch.rand(1, 30, 2), grid=lambda: Grid((5, 6))
        ),
        "data.RandomShift.call": of_method(
            lambda: d.RandomShift(1), "__call__", images=images, generator=torch.Generator
        ),
        "data.HorizontalFlip.call": of_method(
            d.HorizontalFlip, "__call__", images=images, generator=torch.Generator
        ),
        "data.Normalize.call": of_method(
            lambda: d.Normalize((0.5,), (0.5,)), "__call__", images=images
        ),
    }
    return made


def _public(name: str) -> Callable[..., object]:
    package, _, called = name.partition(".")
    return getattr(getattr(teka, package), called)


def wrong_values() -> list[Any]:
    """Values that few arguments are made for."""
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
    """Call what is public with one or two wrong arguments, and count every error that is not a clear refusal.

    Args:
        number: How many calls.
        seed: Decides all of them.
        packages: What is called.
    """
    tally, source, known = (
        Tally("fuzzed calls of audit, convert and data"),
        random.Random(seed),
        entries(),
    )
    names = sorted(name for name in known if name.startswith(packages))
    for index in range(number):
        name = names[index % len(names)]
        tally.add(*_call(name, known[name], source))
    return tally


def _call(name: str, entry: Entry, source: random.Random) -> tuple[str, str | None]:
    torch.manual_seed(0)
    arguments, takes = entry.good(), entry.takes
    # Of an entry without arguments there is nothing to be wrong.
    wrong = source.sample(takes, min(source.choice((1, 1, 2)), len(takes)))
    for argument in wrong:
        good = arguments.get(argument)
        if isinstance(good, Tensor) and source.random() < 0.6:
            arguments[argument] = source.choice(CHANGES)(good.detach())
        else:
            arguments[argument] = source.choice(wrong_values())
    start = time.perf_counter()
    try:
        with _bounded():
            entry.call(**arguments)
        kind, problem = "done", None
    except ValueError as error:
        # Of arguments that do not fit each other, either may be named.
        named = any(re.search(rf"\b{re.escape(argument)}\b", str(error)) for argument in takes)
        kind, problem = "refused", None if named else f"names no argument: {error}"
    except AssertionError as error:
        # Of assertions for tests, one that says what is not so.
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
    shown = ", ".join(f"{argument}={_show(arguments[argument])}" for argument in wrong)
    return kind, f"{name}({shown}): {problem[:500]}"


def _show(value: object) -> str:
    if isinstance(value, Tensor):
        return (
            f"{type(value).__name__} {value.dtype} {value.layout} {value.device} {value.ndim} axes"
        )
    with contextlib.suppress(ValueError):  # of whole numbers with too many digits
        return repr(value)[:80]
    return type(value).__name__


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    """A context whose calls have little time and memory, and whose standard output is not shown."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    size = (
        int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
        * resource.getpagesize()
    )
    limit = size + BYTES if hard == resource.RLIM_INFINITY else min(size + BYTES, hard)
    signal.signal(signal.SIGALRM, _stop)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _stop(*_: object) -> None:
    raise TooLong(f"more than {SECONDS:.0f} s")
