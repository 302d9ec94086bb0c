"""Export the layers that `compile_everything` compiles, and a model; to ONNX some; trace some; tell what went wrong.

Run in a process of its own: the checks of annotations that the tests switch on cannot be exported. Every setting's
diagonal of kernels × relative kernels is exported as it stands; the first setting's also with a batch of any size, of
which traces are too. In the ONNX graphs of linear layers no tensor has as many numbers as there are pairs of tokens.
"""

import contextlib
import io
import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from tests.compilers.compile_everything import BAND, DIM, Placed, change, diagonal, jobs, met, report
from tests.contracts.cases import Case
from torch import Tensor, nn

from teka import Grid
from teka.audit import Movement, blame_layers
from teka.convert import mend
from teka.models import Performer
from teka.nn import Attention


def exported_change(model: nn.Module, tokens: Tensor, others: tuple[Tensor, ...] = ()) -> float:
    """Largest difference between a model and its exported program.

    Args:
        model: The model, of one argument.
        tokens: What it is exported with.
        others: The same for batches of other sizes; where there are any, the size is exported as unknown.
    """
    dynamic = ({0: torch.export.Dim("batch", min=1, max=64)},) if others else None
    program = torch.export.export(model, (tokens,), dynamic_shapes=dynamic).module()
    return max(change([model(one)], [program(one)]) for one in (tokens, *others))


def change_with_a_grid() -> float:
    """The same of a layer called with its grid, saved and loaded again; infinite unless it refuses another grid."""
    layer, grid, tokens = Attention(DIM, 2).eval(), Grid((3, 5), spacing=0.5), torch.randn(3, 15, DIM)
    dynamic = {0: torch.export.Dim("batch", min=1, max=64)}, []
    written = io.BytesIO()
    torch.export.save(torch.export.export(layer, (tokens, grid), dynamic_shapes=dynamic), written)
    program = torch.export.load(io.BytesIO(written.getvalue())).module()
    with contextlib.suppress(ValueError):
        program(tokens, Grid((3, 5)))
        return math.inf
    return change([layer(tokens[:1], grid)], [program(tokens[:1], grid)])


def traced_change(model: nn.Module, *batches: Tensor) -> float:
    """The same of a model that `torch.jit.trace` has followed with the first of some batches, as users call it."""
    with warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")
        trace: Any = torch.jit.trace(model, batches[0], check_trace=False)
    return max(change([model(one)], [trace(one)]) for one in batches)


# Pairs whose sums are those of features, and whether they are causal.
LINEAR: tuple[tuple[Case, bool], ...] = (
    (Case("squared_relu", "rotary"), False),
    (Case("squared_relu", "rotary"), True),
    (Case("positive", "fourier"), False),
    (Case("elu", None), True),
    (Case("hedgehog", "decay"), False),
)


def onnx_change(pair: Case, is_causal: bool) -> float:
    """Largest difference between a layer of 256 tokens and its ONNX graph, infinite if that has every pair of them."""
    import onnx
    import onnxruntime

    side = 16
    grid = Grid(side**2) if is_causal else Grid((side, side))
    options = {"relative": pair.relative, "causal": is_causal, "num_axes": grid.num_axes, "backend": "linear"}
    placed = pair.relative is not None
    model = Placed(Attention(DIM, 2, kernel=pair.kernel, **options), grid if placed else None).eval()
    tokens = torch.randn(1, side**2, DIM)
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(model, (tokens,), dynamo=True, verbose=False)
    assert program is not None
    graph = onnx.shape_inference.infer_shapes(program.model_proto).graph
    sizes = [math.prod(one.dim_value for one in info.type.tensor_type.shape.dim) for info in graph.value_info]
    if max(sizes) >= side**4:
        return math.inf
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    (found,) = session.run(None, {session.get_inputs()[0].name: tokens.numpy()})
    return change([model(tokens)], [torch.from_numpy(found)])


def mended_change() -> float:
    """Return the largest difference between a mended model and its ONNX graph, for batches of several sizes."""
    import onnxruntime

    model = nn.Sequential(nn.Conv2d(2, 4, 3, 2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    first, *others = (torch.randn(batch, 2, 8, 6) for batch in (3, 1, 5))
    mended, _ = mend(model, blame_layers(model, first, [(0, 0), (0, 1)], Movement("circular")))
    dynamic = ({0: torch.export.Dim("batch")},)
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(mended, (first,), dynamic_shapes=dynamic, dynamo=True, verbose=False)
    assert program is not None
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    name = session.get_inputs()[0].name
    found = [torch.from_numpy(session.run(None, {name: images.numpy()})[0]) for images in others]
    return change([mended(images) for images in others], found)


def any_batch(pair: Case) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A layer, and batches of several sizes."""
    model = Placed(Attention(DIM, 2, kernel=pair.kernel, relative=pair.relative), Grid((3, 5))).eval()
    return model, tuple(torch.randn(batch, 15, DIM) for batch in (3, 1, 5))


def main(form: str) -> dict[str, object]:
    """What was exported as a program, to ONNX or traced, and what went wrong."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    images = tuple(torch.randn(batch, 2, 6, 4) for batch in (3, 1, 5))

    def programs() -> Iterator[tuple[str, Case | None, Callable[[], float]]]:
        for name, pair, model, tokens in jobs():
            yield name, pair, partial(exported_change, model.eval(), tokens)
        for pair in met(0):
            model, (first, *others) = any_batch(pair)
            yield f"any batch-{pair}", pair, partial(exported_change, model, first, tuple(others))
        yield "called with a grid", None, change_with_a_grid
        performer = Performer((6, 4), 2, 3, dim=DIM, depth=1, heads=2, kernel="positive").eval()
        yield "Performer", None, partial(exported_change, performer, images[0], images[1:])

    def graphs() -> Iterator[tuple[str, Case | None, Callable[[], float]]]:
        for pair, is_causal in LINEAR:
            yield f"{pair}-{is_causal}", pair, partial(onnx_change, pair, is_causal)
        yield "a mended model", None, mended_change

    def traces() -> Iterator[tuple[str, Case | None, Callable[[], float]]]:
        for pair in diagonal(0):
            model, batches = any_batch(pair)
            yield f"traced-{pair}", pair, partial(traced_change, model, *batches)
        larger = tuple(torch.randn(batch, 2, 12, 10) for batch in (3, 1, 5))  # which eager layers see in blocks
        for options in ({}, {"stem": "polyphase", "patch_size": 2, "periodic": True}):
            performer = Performer((12, 10), 2, 3, dim=DIM, depth=1, heads=2, pool="mean", **options).eval()
            yield f"Performer {options}", None, partial(traced_change, performer, *larger)

    return report({"program": programs, "onnx": graphs, "trace": traces}[form](), BAND)
