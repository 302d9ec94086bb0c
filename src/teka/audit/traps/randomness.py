"""The traps of models that answer otherwise when asked again, and of features that are exact only on average."""

from torch import nn

from teka.audit.traps.trap import Trap
from teka.nn import Attention, RotationJoint

ROUNDING = 1e-6  # of float32, in an output's own size


def non_determinism(repeat: float) -> tuple[Trap, ...]:
    """Whether the same images were answered otherwise in a second call.

    Args:
        repeat: Relative difference of two calls with the same input.
    """
    if repeat <= ROUNDING:
        return ()
    message = (
        f"The same images asked twice give outputs that differ by {repeat:.2g} of their size: something is drawn anew "
        "at each call, such as dropout or random features. Differences between shifts below that mean nothing; fix the "
        "draw and audit again."
    )
    return (Trap("non-determinism", "invalidates", message),)


def random_features(module: nn.Module) -> tuple[Trap, ...]:
    """Attention of which the relative positions hold only on average over draws of random features.

    Args:
        module: The model.
    """
    named = [
        name
        for name, part in module.named_modules()
        if isinstance(part, Attention) and isinstance(part.relative, RotationJoint)
    ]
    if not named:
        return ()
    message = (
        f"{len(named)} layers (the first {named[0]!r}) have relative positions inside random features: they are "
        "equivariant on average over draws, and not for the draw that was audited. Another draw gives other numbers."
    )
    return (Trap("random features", "limits", message),)
