"""Compile layers with every content kernel and every relative kernel, and a model; report errors.

This runs in a separate process, because the annotation checks of the tests cannot be compiled.

Compiling a graph takes a second. Each setting (masked, causal, cross-attention) therefore compiles
other pairs of a content kernel and a relative kernel, so that every kernel is compiled in one setting,
and in the exhaustive tests in every setting. Relative kernels that wrap are also compiled on a periodic
grid, without gradients.
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

# Largest difference in float32, because compiled kernels may add in another order.
TOLERANCE = 3e-5
DIM = 8
PERIODIC = Grid((7, 13), periodic=True)


class LayerWithFixedArguments(nn.Module):
    """A layer whose arguments except the tokens are fixed."""

    def __init__(self, layer: Attention, grid: Grid | None, **arguments: object) -> None:
        super().__init__()
        self.layer = layer
        self.grid = grid
        self.arguments = arguments

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layer(tokens, self.grid, **self.arguments)


def masked(pair: Case, batch: int) -> tuple[nn.Module, Tensor]:
    """Return a layer with masked keys, a fully masked sample and a prefix token, and its input."""
    mask = torch.rand(batch, 16) < 0.7
    mask[:, 0] = True
    mask[-1] = False
    layer = Attention(DIM, 2, kernel=pair.kernel, relative=pair.relative)
    return LayerWithFixedArguments(
        layer, Grid((3, 5)), key_mask=mask, num_prefix_tokens=1
    ), torch.randn(batch, 16, DIM)


def causal(pair: Case, batch: int) -> tuple[nn.Module, Tensor]:
    """Return a causal layer with sequences of different lengths, and its input."""
    layer = Attention(DIM, 2, kernel=pair.kernel, relative=pair.relative, causal=True, num_axes=1)
    return LayerWithFixedArguments(layer, Grid(11), lengths=11 - torch.arange(batch)), torch.randn(
        batch, 11, DIM
    )


def cross_attention(pair: Case, batch: int) -> tuple[nn.Module, Tensor]:
    """Return a layer that attends to a context of different lengths on a finer grid, and its input."""
    layer = Attention(DIM, 2, kernel=pair.kernel, relative=pair.relative, context_dim=5)
    context, lengths = torch.randn(batch, 24, 5), 24 - torch.arange(batch)
    finer = Grid((4, 6), spacing=0.5)
    return LayerWithFixedArguments(
        layer, Grid((2, 3)), context=context, context_grid=finer, lengths=lengths
    ), torch.randn(batch, 6, DIM)


def periodic(pair: Case, batch: int) -> tuple[nn.Module, Tensor]:
    """Return a layer on a periodic grid, where rotary uses the normalizer of lengths, and its input."""
    layer = Attention(DIM, 2, kernel=pair.kernel, relative=pair.relative)
    if pair.relative == "rotary":
        assert isinstance(layer.relative, LearnedRelativeKernel)
        layer.relative.options["normalizer"] = "lengths"
    return LayerWithFixedArguments(layer, PERIODIC), torch.randn(batch, PERIODIC.num_tokens, DIM)


def all_options(pair: Case, batch: int) -> tuple[nn.Module, Tensor]:
    """Return a layer with all options that are off by default, and its input."""
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
    return LayerWithFixedArguments(layer, Grid((3, 5)), num_prefix_tokens=1), torch.randn(
        batch, 16, DIM
    )


def named_backend(pair: Case, batch: int) -> tuple[nn.Module, Tensor]:
    """Return a layer with a backend that "auto" chooses only for more tokens, and its input."""
    num_position_heads = None if pair.kernel == "constant" else 0
    options = {
        "relative": pair.relative,
        "backend": pair.backend,
        "position_heads": num_position_heads,
    }
    # The rings of Shaw need a line.
    grid = Grid(42) if pair.relative == "shaw" else Grid((7, 6))
    layer = Attention(DIM, 2, kernel=pair.kernel, num_axes=grid.num_axes, **options)
    return LayerWithFixedArguments(layer, grid), torch.randn(batch, 42, DIM)


def many_tokens(pair: Case, batch: int) -> tuple[nn.Module, Tensor]:
    """Return a layer, and an input that is long enough to sum blocks of tokens in one operator."""
    layer = Attention(DIM, 2, kernel=pair.kernel, relative=pair.relative, backend=pair.backend)
    mask = None if pair.relative else torch.rand(batch, 260) < 0.7
    return LayerWithFixedArguments(layer, Grid((13, 20)), key_mask=mask), torch.randn(
        batch, 260, DIM
    )


SETTINGS = (masked, causal, cross_attention)
NAMED = (
    Case("constant", "clipped", "rings"),
    Case("squared_relu", "clipped", "rings"),
    Case("elu", "shaw", "rings"),
    Case("squared_relu", "rotation", "toeplitz"),
    Case("relu", "decay", "linear"),
    Case("softmax", "window", "windows"),
)
ANY_LENGTH = (
    Case("squared_relu", "rotary", "linear"),
    Case("squared_relu", "alibi", "dense"),
    Case("squared_relu", "table", "toeplitz"),
    Case("squared_relu", "window", "dense"),
    Case("softmax", "window", "windows"),
    Case("squared_relu", "shaw", "dense"),
)
MANY = (Case("taylor2", None, "linear"), Case("squared_relu", "rotation", "dense"))
# Relative kernels that differ on a periodic grid.
WRAPPED = ("rotation", "quadratic", "generalized_quadratic", "table", "fourier", "rotary")


def covering_pairs(shift: int) -> list[Case]:
    """Return valid pairs in which every kernel and every relative kernel occurs."""
    kernel_names = list(KERNELS)
    wanted = [
        (name, RELATIVE_NAMES[(index + shift) % len(RELATIVE_NAMES)])
        for index, name in enumerate(kernel_names)
    ]
    pairs = [Case(*names) for names in wanted if is_valid_pair(*names)]
    for kernel in [name for name in kernel_names if name not in {pair.kernel for pair in pairs}]:
        pairs.append(Case(kernel, RELATIVE_NAMES[1]))
    for relative in [
        name for name in RELATIVE_NAMES if name not in {pair.relative for pair in pairs}
    ]:
        kernels = [name for name in kernel_names if is_valid_pair(name, relative)]
        pairs.append(Case(kernels[shift % len(kernels)], relative))
    return pairs


def pairs_of_setting(shift: int) -> list[Case]:
    """Return all pairs in the exhaustive tests, otherwise one of three parts that have every kernel."""
    return covering_pairs(shift) if EXHAUSTIVE else covering_pairs(0)[shift :: len(SETTINGS)]


def compiled_layers(batch: int = 2) -> Iterator[tuple[str, Case, nn.Module, Tensor]]:
    """Yield the name, pair, layer and tokens of everything that is compiled or exported."""
    wrapped = [
        Case(list(KERNELS)[1 + index], relative) for index, relative in enumerate(WRAPPED[:-1])
    ]
    chosen = [(setting, pairs_of_setting(shift)) for shift, setting in enumerate(SETTINGS)]
    chosen.append((periodic, [*wrapped, Case("squared_relu", WRAPPED[-1])]))
    chosen.append((all_options, [Case("squared_relu", "fourier")]))
    chosen += [(named_backend, list(NAMED)), (many_tokens, list(MANY))]
    for setting, pairs in chosen:
        for pair in pairs:
            torch.manual_seed(0)  # so that parameters do not depend on earlier pairs
            yield (f"{setting.__name__}-{pair}", pair, *setting(pair, batch))


def output_and_gradients(
    function: Callable[..., Tensor], model: nn.Module, tokens: Tensor
) -> list[Tensor]:
    """Return the output and, if gradients are enabled, the gradient of every parameter."""
    output = function(tokens)
    if not torch.is_grad_enabled():
        return [output]
    gradients = torch.autograd.grad(
        output.square().sum(), list(model.parameters()), allow_unused=True
    )
    return [output.detach(), *[gradient for gradient in gradients if gradient is not None]]


def largest_change(references: list[Tensor], results: list[Tensor]) -> float:
    """Return the largest relative error of all tensors, which is infinite for NaN."""
    return max(
        relative_error(other, expected) for expected, other in zip(references, results, strict=True)
    )


def change_by_compilation(model: nn.Module, tokens: Tensor, backend: str) -> float:
    """Return the largest difference between a model and the model compiled as one graph."""
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    return largest_change(
        output_and_gradients(model, model, tokens), output_and_gradients(compiled, model, tokens)
    )


def change_by_compiled_first_call() -> float:
    """Return the difference between a layer and its compiled form, whose first call is on a line.

    The layer is made for two axes, so the first call changes the shapes of its parameters.
    """
    torch.compiler.reset()
    layer, tokens = Attention(DIM, 2), torch.randn(2, 9, DIM)
    compiled = torch.compile(layer, backend="inductor")
    outputs = [compiled(tokens, grid=9) for _ in range(2)]
    return largest_change(outputs, [layer(tokens, grid=9)] * 2)


class LayerWithLength(nn.Module):
    """A layer whose grid is the number of its tokens."""

    def __init__(self, pair: Case) -> None:
        super().__init__()
        self.layer = Attention(
            DIM, 2, kernel=pair.kernel, relative=pair.relative, backend=pair.backend, num_axes=1
        )

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layer(tokens, tokens.shape[1])


def change_with_another_length(pair: Case) -> float:
    """Return the difference between a layer and a graph that was compiled for other sizes.

    A layer that must be compiled again for another length or batch size is an error.
    """
    torch.compiler.reset()
    model = LayerWithLength(pair)
    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=True)
    first, second = torch.randn(2, 20, DIM), torch.randn(3, 33, DIM)
    for axis in (0, 1):
        torch._dynamo.mark_dynamic(first, axis)
    compiled(first)
    with torch.compiler.set_stance("fail_on_recompile"):
        return largest_change([model(second)], [compiled(second)])


def report(
    measured: Iterator[tuple[str, Case | None, Callable[[], float]]], tolerance: float
) -> dict[str, object]:
    """Return the number of measurements, their kernels, and the errors and large differences by name."""
    count, pairs, wrong = 0, set(), {}
    for name, pair, measure in measured:
        count += 1
        if pair is not None:
            pairs.add(pair)
        try:
            found = measure()
        except Exception as error:  # any error of a compiler is reported
            wrong[name] = f"{type(error).__name__}: {error}"[:500]
        else:
            if not found <= tolerance:
                wrong[name] = found
    kernels, relatives = {pair.kernel for pair in pairs}, {str(pair.relative) for pair in pairs}
    return {
        "count": count,
        "kernels": sorted(kernels),
        "relatives": sorted(relatives),
        "wrong": wrong,
    }


class TwoLayers(nn.Module):
    """Two attention layers. The second attends to the first tokens of the output of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.masked, self.tokens = masked(Case("squared_relu", "rotation"), 2)
        self.causal, _ = causal(Case("softmax", "clipped"), 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.causal(self.masked(tokens)[:, :11])


class LearnedValues(nn.Module):
    """Attention in which only the values are learned."""

    def __init__(self, kernel: ContentKernel) -> None:
        super().__init__()
        self.kernel, self.value = kernel, nn.Linear(5, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return attention(tokens, tokens, self.value(tokens), kernel=self.kernel, backend="linear")


class VmappedLayer(nn.Module):
    """A layer under torch.func.vmap, where sums over blocks are not a single operator."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.func.vmap(self.layer.forward)(tokens)


def main(backend: str, part: int = 0, parts: int = 1) -> dict[str, object]:
    """Compile one part of the layers, and return the report.

    Inductor compiles few graphs, because a graph takes many seconds.
    """
    torch.manual_seed(0)
    torch.set_num_threads(1)

    def measure(model: nn.Module, tokens: Tensor, *, learns: bool = True) -> float:
        with torch.set_grad_enabled(learns):
            return change_by_compilation(model, tokens, backend)

    def measured() -> Iterator[tuple[str, Case | None, Callable[[], float]]]:
        if backend == "inductor":
            if EXHAUSTIVE:
                both = TwoLayers()
                yield "two layers", None, partial(measure, both, both.tokens, learns=False)
            else:
                yield (
                    "a layer",
                    None,
                    partial(measure, *masked(Case("squared_relu", "rotary"), 2), learns=False),
                )
            yield "first call with another number of axes", None, change_by_compiled_first_call
            return
        for name, pair, model, tokens in itertools.islice(compiled_layers(), part, None, parts):
            yield (
                name,
                pair,
                partial(measure, model, tokens, learns=not name.startswith(periodic.__name__)),
            )
        for pair in MANY[part : part + 1]:
            layer, tokens = many_tokens(pair, 2)
            yield (
                f"mapped-{pair}",
                pair,
                partial(measure, VmappedLayer(layer), tokens[None], learns=False),
            )
        for pair in ANY_LENGTH[part::parts]:
            yield f"any length-{pair}", pair, partial(change_with_another_length, pair)
        if part == 0:
            performer = Performer((6, 4), 2, 3, dim=DIM, depth=1, heads=2, kernel="positive")
            for shift in ("none", "mean"):  # shifts of the keys
                yield (
                    f"values alone, {shift}",
                    None,
                    partial(measure, LearnedValues(Taylor2(shift)), torch.randn(2, 2, 130, 5)),
                )
            yield "Performer", None, partial(measure, performer, torch.randn(2, 2, 6, 4))

    return report(measured(), TOLERANCE)
