"""The trap of pixels that are not the pixels one thinks of: images that were resized before or after a shift."""

from collections.abc import Sequence

from teka.audit.traps.trap import Trap


def resized(
    image_size: Sequence[int], seen_size: Sequence[int], *, before_resize: bool, max_shift: int | float
) -> tuple[Trap, ...]:
    """What a shift means where images are resized for the model.

    Args:
        image_size: Size of the images as they came.
        seen_size: Size at which the model sees them.
        before_resize: Whether images were shifted at their own size and then resized.
        max_shift: Largest step of a shift, in the pixels it was made in.
    """
    if tuple(image_size) == tuple(seen_size):
        return ()
    came, seen = (" × ".join(map(str, size)) for size in (image_size, seen_size))
    ratio = seen_size[-1] / image_size[-1]
    if before_resize:
        message = (
            f"Images of {came} were shifted and then resized to {seen}: one pixel of a shift is {ratio:.3g} pixels for "
            "the model, and resizing itself is no exact translation of them."
        )
    else:
        message = (
            f"Images of {came} were resized to {seen} and then shifted: a shift of {max_shift:g} pixels is "
            f"{max_shift / ratio:.3g} pixels of the images as they came."
        )
    return (Trap("resize", "note", message),)
