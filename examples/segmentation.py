"""Say of every pixel which digit it belongs to, wherever the digits are.

    python examples/segmentation.py

A picture of 32 × 32 pixels, whose edges meet, holds noise and three of scikit-learn's digits, 8 × 8, at random places.
The model halves its grid and undoes that by attention between the two grids, whose coarse cells the content places, so
that the map moves with the picture, to rounding. Of the digits a fifth is kept for the test.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from teka.audit import translate
from teka.data import load
from teka.models import Performer
from training import arguments, report, train

SIDE, DIGIT, BACKGROUND = 32, 8, 10


def draw_pictures(
    count: int, generator: torch.Generator, digits: Tensor, classes: Tensor
) -> tuple[Tensor, Tensor]:
    """Pictures (count, 1, 32, 32) and the class of each pixel (count, 32, 32), 10 where no digit is."""
    pictures, maps = torch.zeros(count, SIDE, SIDE), torch.full((count, SIDE, SIDE), BACKGROUND)
    for picture, one_map in zip(pictures, maps, strict=True):
        for _ in range(3):
            digit = int(torch.randint(len(digits), (1,), generator=generator))
            top, left = torch.randint(SIDE, (2,), generator=generator).tolist()
            rows, columns = ((first + torch.arange(DIGIT)) % SIDE for first in (top, left))
            place = rows[:, None], columns[None, :]
            is_ink = digits[digit] > 0.3
            picture[place] = torch.where(is_ink, digits[digit], picture[place])
            one_map[place] = torch.where(is_ink, classes[digit], one_map[place])
    return (pictures + 0.1 * torch.randn(pictures.shape, generator=generator))[:, None], maps


def main() -> None:
    """Train, and report."""
    given = arguments(__doc__, steps=800, inputs=200)
    torch.manual_seed(given.seed)
    split = load("digits", image_size=DIGIT).train
    digits, classes = split.images[:, 0].float(), split.labels
    digits = digits / digits.amax()
    held_out = len(digits) // 5
    model = Performer(
        *(SIDE, 1, BACKGROUND + 1),
        dim=(32, 64),
        depth=(1, 2),
        heads=(2, 4),
        stem="polyphase",
        patch_size=2,
        stem_depth=1,
        periodic=True,
        head="dense",
        resampling="attention",
    )

    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return draw_pictures(16, generator, digits[held_out:], classes[held_out:])

    weight = torch.ones(BACKGROUND + 1)
    weight[BACKGROUND] = 0.1  # most pixels are background, and would be all that is learnt at first
    train(model, draw, lambda logits, maps: cross_entropy(logits, maps, weight), given.steps)
    pictures, maps = draw_pictures(
        given.inputs, torch.Generator().manual_seed(1), digits[:held_out], classes[:held_out]
    )
    shifts = [(0, 0), (0, 1), (1, 0), (3, -2), (-5, 7), (16, 16)]
    with torch.no_grad():
        for shift in shifts:
            found = model(translate(pictures, shift, mode="circular")).argmax(1)
            moved = maps.roll(shift, (1, 2))
            both = [((found == one) & (moved == one)).sum() for one in range(BACKGROUND + 1)]
            either = [((found == one) | (moved == one)).sum() for one in range(BACKGROUND + 1)]
            iou = torch.tensor([a / b for a, b in zip(both, either, strict=True)]).mean()
            right = (found == moved).float()
            of_digits = right[moved != BACKGROUND].mean()
            print(
                f"shift {shift}: pixels {right.mean():.2%}, of digits {of_digits:.2%}, mean IoU {iou:.1%}"
            )
    report("maps", model, pictures, None, shifts)


if __name__ == "__main__":
    main()
