"""Export the layers that `compile_everything` compiles, and a model; some to ONNX; report what went wrong.

Run in a process of its own: the checks of annotations that the tests switch on cannot be exported. Every setting's
diagonal of kernels × relative kernels is exported as it stands; the first setting's also with a batch of any size.
In the ONNX graphs of linear layers no tensor has as many numbers as there are pairs of tokens.
A sample is exported for sequences of any length and for batches of any size up to thousands, in float64.
"""

import contextlib
import io
import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental import symbolic_shapes

from teka import Grid
from teka.audit import Movement, locate_layers
from teka.convert import fix, replace_attention
from teka.models import Performer
from teka.nn import Attention, MultiheadAttention
from tests.compilers.compile_everything import BAND, DIM, Placed, change, jobs, met, report
from tests.contracts.cases import Case


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
    layer, grid, tokens = (
        Attention(DIM, 2).eval(),
        Grid((3, 5), spacing=0.5),
        torch.randn(3, 15, DIM),
    )
    dynamic = {0: torch.export.Dim("batch", min=1, max=64)}, []
    written = io.BytesIO()
    torch.export.save(torch.export.export(layer, (tokens, grid), dynamic_shapes=dynamic), written)
    program = torch.export.load(io.BytesIO(written.getvalue())).module()
    with contextlib.suppress(ValueError):
        program(tokens, Grid((3, 5)))
        return math.inf
    return change([layer(tokens[:1], grid)], [program(tokens[:1], grid)])


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
    options = {
        "relative": pair.relative,
        "causal": is_causal,
        "num_axes": grid.num_axes,
        "backend": "linear",
    }
    placed = pair.relative is not None
    model = Placed(
        Attention(DIM, 2, kernel=pair.kernel, **options), grid if placed else None
    ).eval()
    tokens = torch.randn(1, side**2, DIM)
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(model, (tokens,), dynamo=True, verbose=False)
    assert program is not None
    graph = onnx.shape_inference.infer_shapes(program.model_proto).graph
    sizes = [
        math.prod(one.dim_value for one in info.type.tensor_type.shape.dim)
        for info in graph.value_info
    ]
    if max(sizes) >= side**4:
        return math.inf
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    (found,) = session.run(None, {session.get_inputs()[0].name: tokens.numpy()})
    return change([model(tokens)], [torch.from_numpy(found)])


def mended_change() -> float:
    """Return the largest difference between a mended model and its ONNX graph, for batches of several sizes."""
    import onnxruntime

    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, 2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ).eval()
    first, *others = (torch.randn(batch, 2, 8, 6) for batch in (3, 1, 5))
    mended, _ = fix(model, locate_layers(model, first, [(0, 0), (0, 1)], Movement("circular")))
    dynamic = ({0: torch.export.Dim("batch")},)
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            mended, (first,), dynamic_shapes=dynamic, dynamo=True, verbose=False
        )
    assert program is not None
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    name = session.get_inputs()[0].name
    found = [torch.from_numpy(session.run(None, {name: images.numpy()})[0]) for images in others]
    return change([mended(images) for images in others], found)


def any_batch(pair: Case) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A layer, and batches of several sizes."""
    model = Placed(
        Attention(DIM, 2, kernel=pair.kernel, relative=pair.relative), Grid((3, 5))
    ).eval()
    return model, tuple(torch.randn(batch, 15, DIM) for batch in (3, 1, 5))


SIZE = 8  # of a token, where sequences have any length


class Encoder(nn.Module):
    """An encoder of torch, with padding, whose attention is replaced."""

    def __init__(self, kernel: str, relative: str | None) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(SIZE, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        replace_attention(self.encoder, kernel=kernel, relative=relative)

    def forward(self, tokens: Tensor, padding: Tensor) -> Tensor:
        return self.encoder(tokens, src_key_padding_mask=padding)


class SelfAttention(nn.Module):
    """A layer with torch's signature, of tokens in a row."""

    def __init__(self, *, is_causal: bool = False) -> None:
        super().__init__()
        self.layer = MultiheadAttention(SIZE, 2, batch_first=True)
        self.is_causal = is_causal

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layer(tokens, tokens, tokens, is_causal=self.is_causal)[0]


class OwnLength(nn.Module):
    """A layer whose grid is the length of its tokens."""

    def __init__(self, relative: str) -> None:
        super().__init__()
        self.layer = Attention(SIZE, 2, kernel="softmax", relative=relative, num_axes=1)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layer(tokens, tokens.shape[1])


class TextModel(nn.Module):
    """A model of transformers, with padding, whose attention is replaced."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        sizes: dict[str, Any] = {
            "hidden_size": SIZE,
            "intermediate_size": 16,
            "num_attention_heads": 2,
            "num_hidden_layers": 1,
        }
        self.model = BertModel(BertConfig(vocab_size=50, **sizes))
        replace_attention(self.model)

    def forward(self, words: Tensor, kept: Tensor) -> Tensor:
        return self.model(input_ids=words, attention_mask=kept).last_hidden_state


def padded_words(batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Words, of which the last one of the first sample is padding, and the mask of transformers."""
    return torch.randint(50, (batch, length)), (~padded_row(batch, length)[1]).long()


def row(batch: int, length: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(batch, length, SIZE, dtype=dtype)


def padded_row(
    batch: int, length: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Tokens, of which the last ones of the first sample are padding."""
    return row(batch, length, dtype), torch.arange(length) >= torch.tensor(
        [[length - 1], *[[length]] * (batch - 1)]
    )


def change_of_sizes(
    model: nn.Module, *calls: tuple[Tensor, ...], shape: dict[int, Any], strict: bool = False
) -> float:
    """Largest difference between a model and its program of dynamic sizes, exported with the first call."""
    model = model.double().eval()
    program = torch.export.export(
        model, calls[0], dynamic_shapes=(shape,) * len(calls[0]), strict=strict
    ).module()
    return max(change([model(*call)], [program(*call)]) for call in calls)


def onnx_change_of_lengths(model: nn.Module, *calls: tuple[Tensor, ...]) -> float:
    """Largest difference between a model and its ONNX graph of any batch and length, exported with the first call."""
    import onnxruntime

    batch, length = (
        torch.export.Dim("batch", min=2, max=64),
        torch.export.Dim("length", min=3, max=512),
    )
    dynamic = ({0: batch, 1: length},) * len(calls[0])
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model.eval(), calls[0], dynamic_shapes=dynamic, dynamo=True, verbose=False
        )
    assert program is not None
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    names = [one.name for one in session.get_inputs()]
    changes = []
    for call in calls:
        (found,) = session.run(
            None, {name: one.numpy() for name, one in zip(names, call, strict=True)}
        )
        changes.append(change([model(*call)], [torch.from_numpy(found)]))
    return max(changes)


def main(form: str) -> dict[str, object]:
    """Return what was exported as a program or to ONNX, and what went wrong."""
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
        for pair in (Case("squared_relu", "rotary"), Case("softmax", None)):
            calls = (padded_row(*sizes, torch.float32) for sizes in ((3, 10), (2, 70)))
            encoder = Encoder(pair.kernel, pair.relative)
            yield f"any length-{pair}", pair, partial(onnx_change_of_lengths, encoder, *calls)

    def dynamic_sizes() -> Iterator[tuple[str, Case | None, Callable[[], float]]]:
        export = torch.export.Dim
        named = {0: export("batch", min=1, max=4096), 1: export("length", min=2, max=4096)}
        # The model has 512 positions. PyTorch 2.6 traces a slice of all 512 as another program than a shorter slice.
        words = export("words", min=2, max=511)
        automatic, dynamic = (
            dict.fromkeys((0, 1), export.AUTO),
            dict.fromkeys((0, 1), export.DYNAMIC),
        )
        calls = padded_row(3, 10), padded_row(2, 25)
        yield (
            "encoder",
            None,
            partial(change_of_sizes, Encoder("squared_relu", "rotary"), *calls, shape=named),
        )
        texts = padded_words(3, 10), padded_words(2, 25)
        yield (
            "transformers",
            None,
            partial(change_of_sizes, TextModel(), *texts, shape={0: named[0], 1: words}),
        )
        rows = (row(3, 10),), (row(2, 130),)
        can_be_strict = hasattr(
            symbolic_shapes, "has_static_value"
        )  # which older versions of PyTorch lack
        yield (
            "strict",
            None,
            partial(change_of_sizes, SelfAttention(), *rows, shape=named, strict=can_be_strict),
        )
        for relative in ("rotary", "alibi"):
            model = OwnLength(relative)
            yield (
                f"own length-{relative}",
                None,
                partial(change_of_sizes, model, *rows, shape=named),
            )
        # Causal attention is computed in chunks of 64 tokens.
        rows = tuple(
            (row(batch, length),)
            for batch, length in ((3, 10), (1, 2), (2, 63), (2, 64), (1, 65), (1, 300))
        )
        yield (
            "causal",
            None,
            partial(change_of_sizes, SelfAttention(is_causal=True), *rows, shape=dynamic),
        )
        softmax = Attention(SIZE, 2, kernel="softmax", relative=None, causal=True)
        yield "softmax", None, partial(change_of_sizes, softmax, *rows, shape=automatic)
        # Eager mode takes the rows of such a matrix of weights in parts if the batch is large.
        dense = Placed(
            Attention(SIZE, 2, kernel="squared_relu", relative="rotation", backend="dense"),
            Grid((16, 16)),
        )
        rows = (row(3, 256),), (row(65, 256),)
        yield "dense", None, partial(change_of_sizes, dense, *rows, shape={0: named[0]})
        windows = Placed(
            Attention(SIZE, 2, kernel="softmax", relative="window", backend="windows"), Grid((7, 9))
        )
        rows = (row(3, 63),), (row(5, 63),)
        yield "windows", None, partial(change_of_sizes, windows, *rows, shape={0: named[0]})

    if form == "dynamic sizes":
        return report(dynamic_sizes(), 1e-10)
    return report({"program": programs, "onnx": graphs}[form](), BAND)
