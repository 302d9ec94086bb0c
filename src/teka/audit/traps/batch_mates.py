"""The trap of answers that depend on the other images of the batch."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from teka.audit.comparison import evaluate, relative_difference
from teka.audit.traps.trap import Trap

ROUNDING = 1e-3  # batches of other sizes are summed in another order


def batch_mates(
    function: Callable[[Tensor], object], images: Float[Tensor, "images channels *sizes"], noise: float
) -> tuple[Trap, ...]:
    """Whether an image is answered otherwise when it is alone.

    Batch normalisation without running statistics does that, and key stabilisers or routing over a whole batch.

    Args:
        function: The model.
        images: At least two images; the first is asked alone, and among the first eight.
        noise: Relative difference of two calls with the same input.
    """
    if len(images) < 2:
        return ()
    with torch.no_grad():
        among = evaluate(function, images[:8].clone())[:1]
        alone = evaluate(function, images[:1].clone(), tuple(among.shape))
    difference = relative_difference(alone, among)
    if difference <= max(ROUNDING, 10 * noise):
        return ()
    parts = [
        name
        for name, part in (function.named_modules() if isinstance(function, nn.Module) else ())
        if isinstance(part, _BatchNorm) and not part.track_running_stats
    ]
    why = f" It has batch normalisation without running statistics ({', '.join(parts[:3])})." if parts else ""
    message = (
        f"An image is answered otherwise when it is alone: the output changes by {difference:.2g} of its size. Every "
        f"number here then depends on which images shared a batch.{why}"
    )
    return (Trap("batch statistics", "invalidates", message),)
