"""The command `long-inputs`, which trains segmentation models on images of 65,536 tokens.

Each image is a scene with two handwritten digits at random positions, and every pixel is a token.
For each pixel of a digit, the model predicts two classes: that of the digit itself and that of the
other digit. The second prediction requires information from distant pixels.
"""

import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn
from torch.nn.functional import avg_pool2d

from reproduction.study.summary_page import compute_margin_of_error
from reproduction.training import train_steps
from teka.checks import check_sizes
from teka.cli.app import CommandLine
from teka.data import Split, load
from teka.files import make_directory, write_json
from teka.grid import Grid
from teka.nn import TransformerBlock
from teka.provenance import gather_provenance

AttentionName = Literal["linear", "softmax", "none"]
# Side of the scenes in pixels, batch size and number of steps of each training phase.
SIDES = (48, 128, 256)
BATCH_SIZES = (16, 2, 1)
STEPS = (1200, 300, 600)
TEST_SCENES = 200
NUM_CLASSES = 10
DIM, HEADS, DEPTH = 32, 2, 2
RATE, WARM_UP_STEPS = 3e-3, 100
INK = 0.25
IGNORED = -100


def train_on_long_inputs(
    *,
    seed: int,
    attention: AttentionName = "linear",
    out: Path = Path("runs/long_inputs"),
    data_dir: str | None = None,
    steps: tuple[int, int, int] = STEPS,
    command: CommandLine = "",
) -> None:
    """Train a segmentation model on images of up to 256 × 256 tokens, and measure its accuracy.

    The accuracy, the time per training step and the peak memory are saved. Run the same command
    again to resume an interrupted training run. The saved times then cover only the remaining
    steps.

    Args:
        seed: Seed of the initial weights and the training scenes.
        attention: "linear" for the default layer, "softmax" for softmax attention with a rotary
            position embedding, or "none" for convolutions alone.
        out: Folder of the results of all seeds.
        data_dir: Folder with the files of MNIST.
        steps: Number of training steps with scenes of 48, 128 and 256 pixels per side.
        command: The command line.
    """
    check_sizes({"steps": min(steps)})
    check_sizes({"seed": seed}, least=0, most=2**32 - 1)
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    dataset = load("mnist", data_dir=data_dir)
    model = SceneModel(attention)
    name = f"{attention}-seed-{seed}"
    folder = make_directory("out", out)
    seconds = train_scene_model(model, dataset.train, steps, seed, folder / f"{name}.pt")
    result = {
        "attention": attention,
        "seed": seed,
        "steps": steps,
        "seconds_per_step": seconds,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "test": measure_pixel_accuracy(model.eval(), dataset.test),
        **gather_provenance(command),
    }
    print(f"written: {write_json(folder / f'{name}.json', result)}")


class SceneModel(nn.Module):
    """Segmentation network with convolutions followed by transformer blocks.

    The receptive field of the convolutions is 21 × 21 pixels. This is enough to recognize the digit
    at a pixel, but usually not the other digit in the image.

    Args:
        attention: Attention of the transformer blocks. With "none", there are no blocks.
    """

    def __init__(self, attention: AttentionName) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, DIM, 5, padding=2),
            nn.GELU(),
            nn.Conv2d(DIM, DIM, 5, padding=4, dilation=2),
            nn.GELU(),
            nn.Conv2d(DIM, DIM, 5, padding=4, dilation=2),
        )
        kernel = "softmax" if attention == "softmax" else "squared_relu"
        self.blocks = nn.ModuleList(
            TransformerBlock(DIM, HEADS, kernel=kernel, relative="rotary", num_axes=2)
            for _ in range(0 if attention == "none" else DEPTH)
        )
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, 2 * NUM_CLASSES)

    def forward(
        self, scenes: Float[Tensor, "batch 1 height width"]
    ) -> Float[Tensor, "batch classes 2 height width"]:
        """Return the logits of two classes per pixel: that of its digit and of the other digit."""
        features = self.stem(scenes)
        grid = Grid(features.shape[2:])
        tokens = grid.flatten(features)
        for block in self.blocks:
            tokens = block(tokens, grid)
        logits = grid.unflatten(self.head(self.norm(tokens)))
        return logits.float().unflatten(1, (NUM_CLASSES, 2))


def draw_scenes(
    digits: Split, num_scenes: int, side: int, generator: Generator
) -> tuple[Float[Tensor, "batch 1 side side"], Int[Tensor, "batch 2 side side"]]:
    """Draw scenes of two digits at random positions, with two labels for each pixel.

    The first label is the class of the digit at the pixel, and the second label is the class of the
    other digit. Background pixels have the label −100, which the loss ignores. The digits are
    scaled down to half their size and do not overlap.

    Args:
        digits: Images of digits and their classes.
        num_scenes: Number of scenes.
        side: Side of a scene in pixels.
        generator: Random generator that selects the digits and their positions.
    """
    scenes = torch.zeros(num_scenes, 1, side, side)
    labels = torch.full((num_scenes, 2, side, side), IGNORED)
    for scene, label in zip(scenes, labels, strict=True):
        images, classes = digits[torch.randint(len(digits), (2,), generator=generator)]
        images = avg_pool2d(images, 2)
        size = images.shape[-1]
        corners = torch.zeros(2, 2, dtype=torch.long)
        while (corners[0] - corners[1]).abs().max() < size:
            corners = torch.randint(side - size + 1, (2, 2), generator=generator)
        for image, corner, both in zip(images, corners, (classes, classes.flip(0)), strict=True):
            top, left = corner.tolist()
            rows, columns = slice(top, top + size), slice(left, left + size)
            scene[:, rows, columns] = image
            label[:, rows, columns][:, image[0] > INK] = both[:, None]
    return scenes, labels


def train_scene_model(
    model: nn.Module, digits: Split, steps: Sequence[int], seed: int, checkpoint: Path
) -> dict[int, float]:
    """Train a model on scenes of 48 × 48, then 128 × 128 and then 256 × 256 pixels.

    The learning rate rises linearly during the first 100 steps, and falls linearly during the steps
    with the largest scenes.

    Args:
        model: Model from scenes to the logits of both labels.
        digits: Training images of digits.
        steps: Number of training steps for each side in `SIDES`.
        seed: Seed of the scenes.
        checkpoint: Checkpoint file.

    Returns:
        The median seconds per step for each side of the scenes.
    """
    parts = [part for part, num_steps in enumerate(steps) for _ in range(num_steps)]
    sides = [SIDES[part] for part in parts]
    starts: dict[int, float] = {}

    def make_batch(step: int) -> tuple[Tensor, Tensor]:
        starts[step] = time.perf_counter()
        generator = Generator().manual_seed(seed * 1_000_003 + step)
        return draw_scenes(digits, BATCH_SIZES[parts[step]], sides[step], generator)

    def rate_factor(step: int) -> float:
        return min(1, (step + 1) / WARM_UP_STEPS, (len(parts) - step) / steps[-1])

    train_steps(
        model.train(),
        [torch.optim.AdamW(model.parameters(), lr=RATE)],
        make_batch,
        num_steps=len(parts),
        rate_factor=rate_factor,
        gradient_clip=1.0,
        is_bfloat16=True,
        checkpoint=checkpoint,
        save_every=100,
        after_save=lambda step: print(f"step {step} of {len(parts)}", flush=True),
    )
    times = pd.Series(starts).groupby([sides[step] for step in starts], sort=False)
    return times.agg(lambda group: group.diff().median()).dropna().round(3).to_dict()


@torch.inference_mode()
def measure_pixel_accuracy(model: nn.Module, digits: Split) -> dict[str, Any]:
    """Measure the fraction of digit pixels that a model labels correctly in random test scenes.

    "own_class" is the accuracy for the class of the digit that contains a pixel, and "other_class"
    the accuracy for the class of the other digit. Both are means over scenes. Their 95 % margins of
    error have the suffix "_margin".
    """
    generator = Generator().manual_seed(0)
    shares = []
    for _ in range(TEST_SCENES):
        scenes, labels = draw_scenes(digits, 1, SIDES[-1], generator)
        is_correct = (model(scenes).argmax(dim=1) == labels).sum(dim=(0, 2, 3))
        shares.append((is_correct / (labels >= 0).sum(dim=(0, 2, 3))).tolist())
    table = pd.DataFrame(shares, columns=["own_class", "other_class"])
    return {
        "scenes": TEST_SCENES,
        **table.mean(),
        **compute_margin_of_error(table).add_suffix("_margin"),
    }
