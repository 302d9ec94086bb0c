"""Gradients of a compiled ConvPerformer in bfloat16.

Run in a process of its own, because the checks of annotations in the tests cannot be compiled.
"""

import torch

from teka.models import ConvPerformer


def main(backend: str) -> list[str]:
    """Return the names of the parameters whose gradients are not finite after one step."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = ConvPerformer(8, 1, 3, widths=(8, 8), attention_heads=(0, 2)).train()
    model.compile(backend=backend, dynamic=False)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(torch.rand(16, 1, 8, 8))
    logits.float().square().sum().backward()
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and not parameter.grad.isfinite().all()
    ]
