"""Compile a layer for every content kernel × relative kernel, and models; print what went wrong as JSON.

Run in a process of its own: the checks of annotations that the tests switch on cannot be compiled.
"""

import json
import sys
from collections.abc import Callable, Sequence

import torch
from cases import PAIRS
from torch import Tensor, nn

from teka import Grid
from teka.models import Performer
from teka.nn import Attention

# Float32, eager against compiled: kernels may add in another order.
BAND = 1e-5


def outputs(function: Callable[..., Tensor], model: nn.Module, arguments: Sequence[object]) -> list[Tensor]:
    """The output and, where gradients are on, the gradient of every parameter."""
    output = function(*arguments)
    if not torch.is_grad_enabled():
        return [output]
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(output.square().sum(), parameters, allow_unused=True)
    return [output.detach(), *[gradient for gradient in gradients if gradient is not None]]


def difference(model: nn.Module, arguments: Sequence[object], backend: str) -> float:
    """Largest difference between a model and the model compiled as one graph."""
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    pairs = zip(outputs(model, model, arguments), outputs(compiled, model, arguments), strict=True)
    return max(float((one - other).abs().max() / one.abs().max().clamp_min(1)) for one, other in pairs)


def main(backend: str) -> dict[str, float | str]:
    """How many were compiled, and by name the differences beyond the band and the errors.

    Inductor takes seconds a graph, so that it gets the default kernel only, and that without gradients.
    """
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.set_grad_enabled(backend != "inductor")
    mask = torch.rand(2, 16) < 0.7
    mask[:, 0] = True
    inputs = (torch.randn(2, 16, 8), Grid((3, 5)), mask, 1)
    jobs: dict[str, tuple[nn.Module, Sequence[object]]] = {
        str(pair): (Attention(8, 2, kernel=pair.kernel, relative=pair.relative), inputs)
        for pair in PAIRS
        if backend != "inductor" or (pair.kernel, pair.relative) == ("squared_relu", "rotation")
    }
    if backend != "inductor":
        model = Performer((6, 4), 2, 3, dim=8, depth=2, heads=2, kernel="positive")
        jobs["Performer"] = (model, (torch.randn(2, 2, 6, 4),))
    wrong: dict[str, float | str] = {}
    for name, (model, arguments) in jobs.items():
        try:
            change = difference(model, arguments, backend)
        except Exception as error:  # whatever stops a compiler is what this looks for
            wrong[name] = f"{type(error).__name__}: {error}"[:500]
        else:
            if not change <= BAND:
                wrong[name] = change
    return {"compiled": len(jobs), **wrong}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
