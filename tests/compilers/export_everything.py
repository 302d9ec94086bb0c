"""Export the layers of `compile_everything` and a model, some of them to ONNX, and report errors.

This runs in a separate process, because the annotation checks of the tests cannot be exported. All
layers are exported with fixed shapes, and the layers of the first setting also with a batch of any size.
A few models are exported for any length and any batch size, in float64. In the ONNX graphs of linear
layers, no tensor has an element for each pair of tokens.
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
from tests.compilers.compile_everything import (
    DIM,
    TOLERANCE,
    LayerWithFixedArguments,
    compiled_layers,
    largest_change,
    pairs_of_setting,
    report,
)
from tests.contracts.cases import Case


def change_by_export(model: nn.Module, tokens: Tensor, others: tuple[Tensor, ...] = ()) -> float:
    """Return the largest difference between a model and its exported program.

    Args:
        model: Model with one argument.
        tokens: Input with which the model is exported.
        others: Inputs with other batch sizes. If given, the batch size is exported as dynamic.
    """
    dynamic = ({0: torch.export.Dim("batch", min=1, max=64)},) if others else None
    program = torch.export.export(model, (tokens,), dynamic_shapes=dynamic).module()
    return max(largest_change([model(batch)], [program(batch)]) for batch in (tokens, *others))


def change_by_export_with_a_grid() -> float:
    """Return the difference of a saved program called with a grid, or infinity if it accepts another."""
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
    return largest_change([layer(tokens[:1], grid)], [program(tokens[:1], grid)])


# Pairs with linear attention, and whether they are causal.
LINEAR: tuple[tuple[Case, bool], ...] = (
    (Case("squared_relu", "rotary"), False),
    (Case("squared_relu", "rotary"), True),
    (Case("positive", "fourier"), False),
    (Case("elu", None), True),
    (Case("hedgehog", "decay"), False),
)


def change_by_onnx(pair: Case, is_causal: bool) -> float:
    """Return the difference between a layer and its ONNX graph, or infinity if that has all pairs."""
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
    has_positions = pair.relative is not None
    model = LayerWithFixedArguments(
        Attention(DIM, 2, kernel=pair.kernel, **options), grid if has_positions else None
    ).eval()
    tokens = torch.randn(1, side**2, DIM)
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(model, (tokens,), dynamo=True, verbose=False)
    assert program is not None
    graph = onnx.shape_inference.infer_shapes(program.model_proto).graph
    sizes = [
        math.prod(dimension.dim_value for dimension in info.type.tensor_type.shape.dim)
        for info in graph.value_info
    ]
    if max(sizes) >= side**4:
        return math.inf
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    (found,) = session.run(None, {session.get_inputs()[0].name: tokens.numpy()})
    return largest_change([model(tokens)], [torch.from_numpy(found)])


def change_of_fixed_model_by_onnx() -> float:
    """Return the largest difference between a fixed model and its ONNX graph for several batch sizes."""
    import onnxruntime

    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, 2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ).eval()
    first, *others = (torch.randn(batch, 2, 8, 6) for batch in (3, 1, 5))
    fixed_model, _ = fix(model, locate_layers(model, first, [(0, 0), (0, 1)], Movement("circular")))
    dynamic = ({0: torch.export.Dim("batch")},)
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            fixed_model, (first,), dynamic_shapes=dynamic, dynamo=True, verbose=False
        )
    assert program is not None
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    name = session.get_inputs()[0].name
    found = [torch.from_numpy(session.run(None, {name: images.numpy()})[0]) for images in others]
    return largest_change([fixed_model(images) for images in others], found)


def layer_and_batches(pair: Case) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return a layer and inputs of several batch sizes."""
    model = LayerWithFixedArguments(
        Attention(DIM, 2, kernel=pair.kernel, relative=pair.relative), Grid((3, 5))
    ).eval()
    return model, tuple(torch.randn(batch, 15, DIM) for batch in (3, 1, 5))


TOKEN_DIM = 8  # of the models with dynamic lengths


class Encoder(nn.Module):
    """An encoder of PyTorch with padding whose attention is replaced."""

    def __init__(self, kernel: str, relative: str | None) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(TOKEN_DIM, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        replace_attention(self.encoder, kernel=kernel, relative=relative)

    def forward(self, tokens: Tensor, padding: Tensor) -> Tensor:
        return self.encoder(tokens, src_key_padding_mask=padding)


class SelfAttention(nn.Module):
    """Self-attention of the layer with the interface of PyTorch."""

    def __init__(self, *, is_causal: bool = False) -> None:
        super().__init__()
        self.layer = MultiheadAttention(TOKEN_DIM, 2, batch_first=True)
        self.is_causal = is_causal

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layer(tokens, tokens, tokens, is_causal=self.is_causal)[0]


class LayerWithLength(nn.Module):
    """A layer whose grid is the number of its tokens."""

    def __init__(self, relative: str) -> None:
        super().__init__()
        self.layer = Attention(TOKEN_DIM, 2, kernel="softmax", relative=relative, num_axes=1)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layer(tokens, tokens.shape[1])


class TextModel(nn.Module):
    """A transformers model with padding whose attention is replaced."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        sizes: dict[str, Any] = {
            "hidden_size": TOKEN_DIM,
            "intermediate_size": 16,
            "num_attention_heads": 2,
            "num_hidden_layers": 1,
        }
        self.model = BertModel(BertConfig(vocab_size=50, **sizes))
        replace_attention(self.model)

    def forward(self, words: Tensor, kept: Tensor) -> Tensor:
        return self.model(input_ids=words, attention_mask=kept).last_hidden_state


def draw_padded_words(batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Return words whose first sample ends with padding, and the mask of transformers."""
    return torch.randint(50, (batch, length)), (~draw_padded_tokens(batch, length)[1]).long()


def draw_tokens(batch: int, length: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(batch, length, TOKEN_DIM, dtype=dtype)


def draw_padded_tokens(
    batch: int, length: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Return tokens whose first sample ends with padding, and the padding mask."""
    return draw_tokens(batch, length, dtype), torch.arange(length) >= torch.tensor(
        [[length - 1], *[[length]] * (batch - 1)]
    )


def change_by_dynamic_export(
    model: nn.Module, *calls: tuple[Tensor, ...], shape: dict[int, Any], strict: bool = False
) -> float:
    """Return the difference between a model and its program with dynamic sizes, traced on the first call."""
    model = model.double().eval()
    program = torch.export.export(
        model, calls[0], dynamic_shapes=(shape,) * len(calls[0]), strict=strict
    ).module()
    return max(largest_change([model(*call)], [program(*call)]) for call in calls)


def change_by_dynamic_onnx(model: nn.Module, *calls: tuple[Tensor, ...]) -> float:
    """Return the difference between a model and its ONNX graph with dynamic sizes."""
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
    names = [argument.name for argument in session.get_inputs()]
    changes = []
    for call in calls:
        (found,) = session.run(
            None, {name: tensor.numpy() for name, tensor in zip(names, call, strict=True)}
        )
        changes.append(largest_change([model(*call)], [torch.from_numpy(found)]))
    return max(changes)


def main(form: str) -> dict[str, object]:
    """Export programs or ONNX graphs, and return the report."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    images = tuple(torch.randn(batch, 2, 6, 4) for batch in (3, 1, 5))

    def programs() -> Iterator[tuple[str, Case | None, Callable[[], float]]]:
        for name, pair, model, tokens in compiled_layers():
            yield name, pair, partial(change_by_export, model.eval(), tokens)
        for pair in pairs_of_setting(0):
            model, (first, *others) = layer_and_batches(pair)
            yield f"any batch-{pair}", pair, partial(change_by_export, model, first, tuple(others))
        yield "grid as argument", None, change_by_export_with_a_grid
        performer = Performer((6, 4), 2, 3, dim=DIM, depth=1, heads=2, kernel="positive").eval()
        yield "Performer", None, partial(change_by_export, performer, images[0], images[1:])

    def graphs() -> Iterator[tuple[str, Case | None, Callable[[], float]]]:
        for pair, is_causal in LINEAR:
            yield f"{pair}-{is_causal}", pair, partial(change_by_onnx, pair, is_causal)
        yield "a fixed model", None, change_of_fixed_model_by_onnx
        for pair in (Case("squared_relu", "rotary"), Case("softmax", None)):
            calls = (draw_padded_tokens(*sizes, torch.float32) for sizes in ((3, 10), (2, 70)))
            encoder = Encoder(pair.kernel, pair.relative)
            yield f"any length-{pair}", pair, partial(change_by_dynamic_onnx, encoder, *calls)

    def dynamic_sizes() -> Iterator[tuple[str, Case | None, Callable[[], float]]]:
        export = torch.export.Dim
        named = {0: export("batch", min=1, max=4096), 1: export("length", min=2, max=4096)}
        # The model has 512 positions. PyTorch 2.6 traces a slice of all 512 as another program than a shorter slice.
        words = export("words", min=2, max=511)
        automatic, dynamic = (
            dict.fromkeys((0, 1), export.AUTO),
            dict.fromkeys((0, 1), export.DYNAMIC),
        )
        calls = draw_padded_tokens(3, 10), draw_padded_tokens(2, 25)
        yield (
            "encoder",
            None,
            partial(
                change_by_dynamic_export, Encoder("squared_relu", "rotary"), *calls, shape=named
            ),
        )
        texts = draw_padded_words(3, 10), draw_padded_words(2, 25)
        yield (
            "transformers",
            None,
            partial(change_by_dynamic_export, TextModel(), *texts, shape={0: named[0], 1: words}),
        )
        rows = (draw_tokens(3, 10),), (draw_tokens(2, 130),)
        can_be_strict = hasattr(
            symbolic_shapes, "has_static_value"
        )  # which older versions of PyTorch lack
        yield (
            "strict",
            None,
            partial(
                change_by_dynamic_export, SelfAttention(), *rows, shape=named, strict=can_be_strict
            ),
        )
        for relative in ("rotary", "alibi"):
            model = LayerWithLength(relative)
            yield (
                f"own length-{relative}",
                None,
                partial(change_by_dynamic_export, model, *rows, shape=named),
            )
        # Causal attention is computed in chunks of 64 tokens.
        rows = tuple(
            (draw_tokens(batch, length),)
            for batch, length in ((3, 10), (1, 2), (2, 63), (2, 64), (1, 65), (1, 300))
        )
        yield (
            "causal",
            None,
            partial(change_by_dynamic_export, SelfAttention(is_causal=True), *rows, shape=dynamic),
        )
        softmax = Attention(TOKEN_DIM, 2, kernel="softmax", relative=None, causal=True)
        yield "softmax", None, partial(change_by_dynamic_export, softmax, *rows, shape=automatic)
        # Eager mode takes the rows of such a matrix of weights in parts if the batch is large.
        dense = LayerWithFixedArguments(
            Attention(TOKEN_DIM, 2, kernel="squared_relu", relative="rotation", backend="dense"),
            Grid((16, 16)),
        )
        rows = (draw_tokens(3, 256),), (draw_tokens(65, 256),)
        yield "dense", None, partial(change_by_dynamic_export, dense, *rows, shape={0: named[0]})
        windows = LayerWithFixedArguments(
            Attention(TOKEN_DIM, 2, kernel="softmax", relative="window", backend="windows"),
            Grid((7, 9)),
        )
        rows = (draw_tokens(3, 63),), (draw_tokens(5, 63),)
        yield (
            "windows",
            None,
            partial(change_by_dynamic_export, windows, *rows, shape={0: named[0]}),
        )

    if form == "dynamic sizes":
        return report(dynamic_sizes(), 1e-10)
    return report({"program": programs, "onnx": graphs}[form](), TOLERANCE)
