"""Export the layers that `compile_everything` compiles, and a model; to ONNX some; tell what went wrong.

Run in a process of its own: the checks of annotations that the tests switch on cannot be exported. Every setting's
diagonal of kernels × relative kernels is exported as it stands; the first setting's also with a batch of any size. In
the ONNX graphs of linear layers no tensor has as many numbers as there are pairs of tokens.
"""

import contextlib
import io
import math
import warnings
from collections.abc import Callable, Iterator

import torch
from tests.contracts.cases import Case
from tests.contracts.compile_everything import BAND, DIM, Placed, change, jobs, met, report
from torch import Tensor, nn

from teka import Grid
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


def main(to_onnx: bool) -> dict[str, object]:
    """What was exported, as programs or to ONNX, and what went wrong."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)

    def measured_onnx() -> Iterator[tuple[str, Case | None, Callable[[], float]]]:
        for pair, is_causal in LINEAR:
            yield f"{pair}-{is_causal}", pair, lambda pair=pair, is_causal=is_causal: onnx_change(pair, is_causal)

    def measured() -> Iterator[tuple[str, Case | None, Callable[[], float]]]:
        for name, pair, model, tokens in jobs():
            yield name, pair, lambda model=model, tokens=tokens: exported_change(model.eval(), tokens)
        for pair in met(0):
            model = Placed(Attention(DIM, 2, kernel=pair.kernel, relative=pair.relative), Grid((3, 5))).eval()
            batches = tuple(torch.randn(batch, 15, DIM) for batch in (3, 1, 5))
            yield (
                f"any batch-{pair}",
                pair,
                lambda model=model, batches=batches: exported_change(model, batches[0], batches[1:]),
            )
        performer = Performer((6, 4), 2, 3, dim=DIM, depth=1, heads=2, kernel="positive").eval()
        images = tuple(torch.randn(batch, 2, 6, 4) for batch in (3, 1, 5))
        yield "Performer", None, lambda: exported_change(performer, images[0], images[1:])

    return report(measured_onnx() if to_onnx else measured(), BAND)
