"""The trap of a background that the images do not have, as after normalisation."""

import torch
from jaxtyping import Float
from torch import Tensor

from teka.audit.background import background_value
from teka.audit.movement import Movement
from teka.audit.traps.trap import Trap

FILLING = ("zero", "canvas")
SHARE = 0.5  # of the border's pixels


def fill_value(images: Float[Tensor, "images channels height width"], movement: Movement) -> tuple[Trap, ...]:
    """Whether the border of the images has mostly one value, and it is another than what shifts bring in.

    Images that were normalised have no black of 0: a shift that fills with 0 then brings in grey.

    Args:
        images: The images, before they are placed.
        movement: How they are moved.
    """
    if movement.mode not in FILLING:
        return ()
    edges = (images[:, :, 0], images[:, :, -1], images[:, :, :, 0], images[:, :, :, -1])
    border = torch.cat([edge.transpose(0, 1).flatten(1) for edge in edges], dim=1)
    fill = background_value(images, movement.background).flatten().expand(images.shape[1])
    commonest = border.mode(dim=1).values
    share = (border == commonest[:, None]).double().mean(dim=1)
    wrong = (share >= SHARE) & (commonest != fill)
    traps = []
    if wrong.any():
        channel = int(wrong.int().argmax())
        message = (
            f"{float(share[channel]):.0%} of the border's pixels are {float(commonest[channel]):.3g} (channel "
            f"{channel}), but shifts bring in {float(fill[channel]):.3g}: a seam that no image has. Give background="
            f"{float(commonest[channel]):.4g}, or audit before normalisation."
        )
        traps.append(Trap("fill value", "limits", message))
    elif float(images.min()) < 0 and not wrong.any() and float(fill.abs().max()) == 0:
        message = (
            f"The images have values from {float(images.min()):.3g} to {float(images.max()):.3g}, so they seem to be "
            "normalised, and shifts bring in 0, which after normalisation is not black but the mean colour."
        )
        traps.append(Trap("fill value", "note", message))
    return tuple(traps)
