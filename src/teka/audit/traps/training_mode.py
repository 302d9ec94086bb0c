"""The trap of a model that still trains."""

from torch import nn

from teka.audit.traps.trap import Trap


def training_mode(module: nn.Module) -> tuple[Trap, ...]:
    """Whether a part of a module was handed over in training mode; an audit measures it in evaluation.

    Args:
        module: The model, as it came.
    """
    parts = [name or "the model itself" for name, part in module.named_modules() if part.training]
    if not parts:
        return ()
    message = (
        f"The model came in training mode ({len(parts)} of its parts, the first {parts[0]!r}). It was measured in "
        "evaluation mode, without dropout and with the running statistics, and set back afterwards; call .eval() where "
        "you use it."
    )
    return (Trap("training mode", "note", message),)
