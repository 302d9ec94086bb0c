"""The guard against auditing a module that still trains."""

from torch import nn


def check_evaluation_mode(argument: str, function: object) -> None:
    """Refuse a module, or a method of one, of which any part is in training mode.

    Dropout would add noise to every measurement, and batch normalisation would learn from it.

    Args:
        argument: The name under which the caller received the function.
        function: Any callable; only modules and their bound methods can be examined.

    Raises:
        ValueError: A part of the module is in training mode.
    """
    module = function if isinstance(function, nn.Module) else getattr(function, "__self__", None)
    if not isinstance(module, nn.Module):
        return
    for name, part in module.named_modules():
        if part.training:
            place = f"its part {name!r}" if name else "it"
            kind = type(module).__name__
            raise ValueError(
                f"{argument} is a {kind} and {place} is in training mode, expected evaluation: call .eval()"
            )
