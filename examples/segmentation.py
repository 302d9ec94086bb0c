"""Segment digits in an image, equivariantly to shifts.

    python examples/segmentation.py

An image of 32 × 32 pixels, whose edges meet, contains noise and three of scikit-learn's digits at
random places. The model downsamples and upsamples by attention between two grids. The content
selects the coarse cells, so the map of classes moves with the image. A fifth of the digits is for
testing.
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
    """Draw pictures (count, 1, 32, 32) and the class of each pixel, 10 for the background."""
    pictures, maps = torch.zeros(count, SIDE, SIDE), torch.full((count, SIDE, SIDE), BACKGROUND)
    for picture, class_map in zip(pictures, maps, strict=True):
        for _ in range(3):
            digit = int(torch.randint(len(digits), (1,), generator=generator))
            top, left = torch.randint(SIDE, (2,), generator=generator).tolist()
            rows, columns = ((first + torch.arange(DIGIT)) % SIDE for first in (top, left))
            place = rows[:, None], columns[None, :]
            is_ink = digits[digit] > 0.3
            picture[place] = torch.where(is_ink, digits[digit], picture[place])
            class_map[place] = torch.where(is_ink, classes[digit], class_map[place])
    return (pictures + 0.1 * torch.randn(pictures.shape, generator=generator))[:, None], maps


def main() -> None:
    """Train a model and report its errors."""
    options = arguments(__doc__, steps=800, inputs=200)
    torch.manual_seed(options.seed)
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
    weight[BACKGROUND] = 0.1  # because most pixels are background
    train(model, draw, lambda logits, maps: cross_entropy(logits, maps, weight), options.steps)
    pictures, maps = draw_pictures(
        options.inputs, torch.Generator().manual_seed(1), digits[:held_out], classes[:held_out]
    )
    shifts = [(0, 0), (0, 1), (1, 0), (3, -2), (-5, 7), (16, 16)]
    with torch.no_grad():
        for shift in shifts:
            predicted = model(translate(pictures, shift, mode="circular")).argmax(1)
            moved = maps.roll(shift, (1, 2))
            both = [
                ((predicted == label) & (moved == label)).sum() for label in range(BACKGROUND + 1)
            ]
            either = [
                ((predicted == label) | (moved == label)).sum() for label in range(BACKGROUND + 1)
            ]
            iou = torch.tensor([a / b for a, b in zip(both, either, strict=True)]).mean()
            is_correct = (predicted == moved).float()
            on_digits = is_correct[moved != BACKGROUND].mean()
            print(
                f"shift {shift}: pixels {is_correct.mean():.2%}, on digits {on_digits:.2%}, mean IoU {iou:.1%}"
            )
    report("maps", model, pictures, None, shifts)


if __name__ == "__main__":
    main()
