"""The trap of shifts that all fit the model's patches, so that aliasing goes unseen."""

from collections.abc import Sequence

from teka.audit.traps.trap import Trap


def phases_unseen(shifts: Sequence[Sequence[int | float]], stride: Sequence[int]) -> tuple[Trap, ...]:
    """Whether a patch grid or a stride is coarser than one pixel, and every shift is a multiple of it.

    Args:
        shifts: The shifts, one step for each axis.
        stride: Pixels to a cell of the model's coarsest grid, along each axis.
    """
    if all(step <= 1 for step in stride) or not any(any(shift) for shift in shifts):
        return ()
    if any(step % side for shift in shifts for step, side in zip(shift, stride, strict=True)):
        return ()
    sides = " × ".join(map(str, stride))
    message = (
        f"Every shift is a multiple of the model's grid of {sides} pixels: what happens in between, where patches cut "
        "the image elsewhere, was not looked at. Add shifts of 1 pixel."
    )
    return (Trap("phases unseen", "limits", message),)
