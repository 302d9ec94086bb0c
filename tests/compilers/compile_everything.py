"""Compile a layer for every content kernel and every relative kernel, and a model; tell what went wrong.

Run in a process of its own: the checks of annotations that the tests switch on cannot be compiled.

A graph takes a second. So for each setting (masked, causal, cross-attention) a part of a diagonal of the table of
kernels × relative kernels is compiled, each setting another one: every kernel and every relative kernel goes through a
setting, and in the exhaustive suite through every setting, forward and backward. A torus is there for the relative
kernels that wrap, forward only.
"""

import itertools
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from teka import Grid
from teka.functional import KERNELS, ContentKernel, Taylor2, attention
from teka.models import Performer
from teka.nn import Attention, LearnedRelativeKernel
from tests.contracts.cases import EXHAUSTIVE, RELATIVE_NAMES, Case, is_valid_pair, relative_error

# Float32, eager against compiled: kernels may add in another order.
BAND = 3e-5
DIM = 8
PERIODIC = Grid((7, 13), periodic=True)


class Placed(nn.Module):
    """A layer with everything but the tokens as it is."""

    def __init__(self, layer: Attention, grid: Grid | None, **places: object) -> None:
        super().__init__()
        self.layer = layer
        self.grid = grid
        self.places = places

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layer(tokens, self.grid, **self.places)


def masked(pair: Case, batch: int) -> tuple[nn.Module, Tensor]:
    """Masked keys, a sample that is all padding, and a token without a position."""
    mask = torch.rand(batch, 16) < 0.7
    mask[:, 0] = True
    mask[-1] = False
    layer = Attention(DIM, 2, kernel=pair.kernel, relative=pair.relative)
    return Placed(layer, Grid((3, 5)), key_mask=mask, num_prefix_tokens=1), torch.randn(
        batch, 16, DIM
    )


def causal(pair: Case, batch: int) -> tuple[nn.Module, Tensor]:
    """A ragged batch of sequences in which nothing sees what is later."""
    layer = Attention(DIM, 2, kernel=pair.kernel, relative=pair.relative, causal=True, num_axes=1)
    return Placed(layer, Grid(11), lengths=11 - torch.arange(batch)), torch.randn(batch, 11, DIM)


def across(pair: Case, batch: int) -> tuple[nn.Module, Tensor]:
    """Tokens that attend to a ragged batch on a finer grid."""
    layer = Attention(DIM, 2, kernel=pair.kernel, relative=pair.relative, context_dim=5)
    context, lengths = torch.randn(batch, 24, 5), 24 - torch.arange(batch)
    finer = Grid((4, 6), spacing=0.5)
    return Placed(
        layer, Grid((2, 3)), context=context, context_grid=finer, lengths=lengths
    ), torch.randn(batch, 6, DIM)


def periodic(pair: Case, batch: int) -> tuple[nn.Module, Tensor]:
    """A torus; rotary has its other denominator there."""
    layer = Attention(DIM, 2, kernel=pair.kernel, relative=pair.relative)
    if pair.relative == "rotary":
        assert isinstance(layer.relative, LearnedRelativeKernel)
        layer.relative.options["normalizer"] = "lengths"
    return Placed(layer, PERIODIC), torch.randn(batch, PERIODIC.num_tokens, DIM)


def optional(pair: Case, batch: int) -> tuple[nn.Module, Tensor]:
    """Every option of a layer that is off by default."""
    layer = Attention(
        DIM,
        2,
        kernel=pair.kernel,
        relative=pair.relative,
        position_heads=1,
        query_key="normalized",
        gate=True,
        value_convolution=3,
    )
    return Placed(layer, Grid((3, 5)), num_prefix_tokens=1), torch.randn(batch, 16, DIM)


def by_name(pair: Case, batch: int) -> tuple[nn.Module, Tensor]:
    """A backend that "auto" takes for more tokens alone."""
    own = None if pair.kernel == "constant" else 0
    options = {"relative": pair.relative, "backend": pair.backend, "position_heads": own}
    # The rings of Shaw need a line.
    grid = Grid(42) if pair.relative == "shaw" else Grid((7, 6))
    layer = Attention(DIM, 2, kernel=pair.kernel, num_axes=grid.num_axes, **options)
    return Placed(layer, grid), torch.randn(batch, 42, DIM)


def many(pair: Case, batch: int) -> tuple[nn.Module, Tensor]:
    """So many tokens that sums in blocks, or in tiles of the matrix of weights, are one node of the graph."""
    layer = Attention(DIM, 2, kernel=pair.kernel, relative=pair.relative, backend=pair.backend)
    mask = None if pair.relative else torch.rand(batch, 260) < 0.7
    return Placed(layer, Grid((13, 20)), key_mask=mask), torch.randn(batch, 260, DIM)


SETTINGS = (masked, causal, across)
NAMED = (
    Case("constant", "clipped", "rings"),
    Case("squared_relu", "clipped", "rings"),
    Case("elu", "shaw", "rings"),
    Case("squared_relu", "rotation", "toeplitz"),
    Case("relu", "decay", "linear"),
    Case("softmax", "window", "windows"),
)
MANY = (Case("taylor2", None, "linear"), Case("squared_relu", "rotation", "dense"))
# Those that are something else on a torus.
WRAPPED = ("rotation", "quadratic", "generalized_quadratic", "table", "fourier", "rotary")


def diagonal(shift: int) -> list[Case]:
    """Pairs with every kernel and every relative kernel in at least one that exists."""
    names = list(KERNELS)
    wanted = [
        (name, RELATIVE_NAMES[(place + shift) % len(RELATIVE_NAMES)])
        for place, name in enumerate(names)
    ]
    pairs = [Case(*one) for one in wanted if is_valid_pair(*one)]
    for kernel in [name for name in names if name not in {pair.kernel for pair in pairs}]:
        pairs.append(Case(kernel, RELATIVE_NAMES[1]))
    for relative in [
        name for name in RELATIVE_NAMES if name not in {pair.relative for pair in pairs}
    ]:
        kernels = [name for name in names if is_valid_pair(name, relative)]
        pairs.append(Case(kernels[shift % len(kernels)], relative))
    return pairs


def met(shift: int) -> list[Case]:
    """The diagonal, or where not everything is asked for a third of it, so that three settings have every name."""
    return diagonal(shift) if EXHAUSTIVE else diagonal(0)[shift :: len(SETTINGS)]


def jobs(batch: int = 2) -> Iterator[tuple[str, Case, nn.Module, Tensor]]:
    """Name, pair, layer and tokens of every setting's diagonal, of a torus, the options and backends by name."""
    wrapped = [
        Case(list(KERNELS)[1 + place], relative) for place, relative in enumerate(WRAPPED[:-1])
    ]
    chosen = [(setting, met(shift)) for shift, setting in enumerate(SETTINGS)]
    chosen.append((periodic, [*wrapped, Case("squared_relu", WRAPPED[-1])]))
    chosen.append((optional, [Case("squared_relu", "fourier")]))
    chosen += [(by_name, list(NAMED)), (many, list(MANY))]
    for setting, pairs in chosen:
        for pair in pairs:
            torch.manual_seed(0)  # so that a pair's numbers do not depend on those before
            yield (f"{setting.__name__}-{pair}", pair, *setting(pair, batch))


def outputs(function: Callable[..., Tensor], model: nn.Module, tokens: Tensor) -> list[Tensor]:
    """The output and, where gradients are on, the gradient of every parameter."""
    output = function(tokens)
    if not torch.is_grad_enabled():
        return [output]
    gradients = torch.autograd.grad(
        output.square().sum(), list(model.parameters()), allow_unused=True
    )
    return [output.detach(), *[gradient for gradient in gradients if gradient is not None]]


def change(ours: list[Tensor], others: list[Tensor]) -> float:
    """Largest difference over the largest number, the latter at least 1; of NaN infinite."""
    return max(relative_error(other, one) for one, other in zip(ours, others, strict=True))


def compiled_change(model: nn.Module, tokens: Tensor, backend: str) -> float:
    """Largest difference between a model and the model compiled as one graph."""
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    return change(outputs(model, model, tokens), outputs(compiled, model, tokens))


def report(
    measured: Iterator[tuple[str, Case | None, Callable[[], float]]], band: float
) -> dict[str, object]:
    """How many there were, of which kernels and relative kernels, and by name what was beyond the band or failed."""
    count, pairs, wrong = 0, set(), {}
    for name, pair, measure in measured:
        count += 1
        if pair is not None:
            pairs.add(pair)
        try:
            found = measure()
        except Exception as error:  # whatever stops a compiler is what this looks for
            wrong[name] = f"{type(error).__name__}: {error}"[:500]
        else:
            if not found <= band:
                wrong[name] = found
    kernels, relatives = {pair.kernel for pair in pairs}, {str(pair.relative) for pair in pairs}
    return {
        "count": count,
        "kernels": sorted(kernels),
        "relatives": sorted(relatives),
        "wrong": wrong,
    }


class Both(nn.Module):
    """Two layers one after the other, of which the second takes the first tokens of the first one's output."""

    def __init__(self) -> None:
        super().__init__()
        self.masked, self.tokens = masked(Case("squared_relu", "rotation"), 2)
        self.causal, _ = causal(Case("softmax", "clipped"), 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.causal(self.masked(tokens)[:, :11])


class Values(nn.Module):
    """Attention whose values alone are learned, of many tokens."""

    def __init__(self, kernel: ContentKernel) -> None:
        super().__init__()
        self.kernel, self.value = kernel, nn.Linear(5, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return attention(tokens, tokens, self.value(tokens), kernel=self.kernel, backend="linear")


class Mapped(nn.Module):
    """A layer that torch.func.vmap takes over a dimension before its own, where no sum is one node."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.func.vmap(self.layer.forward)(tokens)


def main(backend: str, part: int = 0, parts: int = 1) -> dict[str, object]:
    """What was compiled, of every so-manieth layer, and what went wrong.

    Inductor takes many seconds a graph, so that it gets one only, of two layers, and that without gradients.
    """
    torch.manual_seed(0)
    torch.set_num_threads(1)

    def measure(model: nn.Module, tokens: Tensor, *, learns: bool = True) -> float:
        with torch.set_grad_enabled(learns):
            return compiled_change(model, tokens, backend)

    def measured() -> Iterator[tuple[str, Case | None, Callable[[], float]]]:
        if backend == "inductor":
            if EXHAUSTIVE:
                both = Both()
                yield "two layers", None, partial(measure, both, both.tokens, learns=False)
            else:
                yield (
                    "a layer",
                    None,
                    partial(measure, *masked(Case("squared_relu", "rotary"), 2), learns=False),
                )
            return
        for name, pair, model, tokens in itertools.islice(jobs(), part, None, parts):
            yield (
                name,
                pair,
                partial(measure, model, tokens, learns=not name.startswith(periodic.__name__)),
            )
        for pair in MANY[part : part + 1]:
            layer, tokens = many(pair, 2)
            yield (
                f"mapped-{pair}",
                pair,
                partial(measure, Mapped(layer), tokens[None], learns=False),
            )
        if part == 0:
            performer = Performer((6, 4), 2, 3, dim=DIM, depth=1, heads=2, kernel="positive")
            for shift in ("none", "mean"):  # of which blocks take none out
                yield (
                    f"values alone, {shift}",
                    None,
                    partial(measure, Values(Taylor2(shift)), torch.randn(2, 2, 130, 5)),
                )
            yield "Performer", None, partial(measure, performer, torch.randn(2, 2, 6, 4))

    return report(measured(), BAND)
