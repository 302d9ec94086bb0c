"""Export the layers that `compile_everything` compiles, and a model; tell what went wrong.

Run in a process of its own: the checks of annotations that the tests switch on cannot be exported. Every setting's
diagonal of kernels × relative kernels is exported as it stands; the first setting's also with a batch of any size.
"""

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


def main() -> dict[str, object]:
    """What was exported, and what went wrong."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)

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

    return report(measured(), BAND)
