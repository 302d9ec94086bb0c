"""Classify clouds of points at their real coordinates, without a grid.

    python examples/points.py

A cloud has 256 noisy points on a ball, a box, a ring or a cylinder, which is rotated and placed at
random. The token of a point is its distance to the nearest other point. Attention only sees
differences of coordinates, so predictions do not change if the cloud moves by 1,000 units.
"""

import math

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from teka.nn import AttentionPool, TransformerBlock
from training import arguments, train

POINTS, SHAPES = 256, ("ball", "box", "ring", "cylinder")
EXACT = "donot_use_mm_for_euclid_dist"  # matrix products are inaccurate far from 0


class Clouds(nn.Module):
    """Classifier of points in space."""

    def __init__(self, dim: int = 48, heads: int = 4, depth: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(1, dim)
        self.blocks = nn.ModuleList(TransformerBlock(dim, heads, num_axes=3) for _ in range(depth))
        self.norm, self.pool, self.head = (
            nn.LayerNorm(dim),
            AttentionPool(dim, heads),
            nn.Linear(dim, len(SHAPES)),
        )

    def forward(self, points: Tensor) -> Tensor:
        """Return logits (batch, 4) for clouds (batch, points, 3)."""
        nearest = (
            torch.cdist(points, points, compute_mode=EXACT).topk(2, largest=False).values[..., 1:]
        )
        tokens = self.first(nearest)
        for block in self.blocks:
            tokens = block(tokens, positions=points)
        return self.head(self.pool(self.norm(tokens))[:, 0])


def draw_clouds(count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Draw clouds (count, POINTS, 3) and their classes."""
    labels = torch.randint(len(SHAPES), (count,), generator=generator)
    normal = torch.randn(count, POINTS, 3, generator=generator)
    uniform = 2 * torch.rand(count, POINTS, 3, generator=generator) - 1
    angle, turn = math.pi * uniform[..., 0], math.pi * uniform[..., 1]
    wide = 1 + 0.4 * turn.cos()
    shapes = torch.stack(
        [
            normalize(normal, dim=-1),
            uniform / uniform.abs().amax(dim=-1, keepdim=True),
            torch.stack([wide * angle.cos(), wide * angle.sin(), 0.4 * turn.sin()], dim=-1),
            torch.stack([angle.cos(), angle.sin(), 1.2 * uniform[..., 2]], dim=-1),
        ]
    )
    points = shapes[labels, torch.arange(count)]
    rotations = torch.linalg.qr(torch.randn(count, 3, 3, generator=generator)).Q
    centers = 10 * torch.randn(count, 1, 3, generator=generator)
    return points @ rotations + centers + 0.02 * torch.randn(
        points.shape, generator=generator
    ), labels


def main() -> None:
    """Train and measure the model, and move every cloud far away."""
    options = arguments(__doc__, steps=600, inputs=500)
    torch.manual_seed(options.seed)
    model = Clouds()
    train(model, lambda generator: draw_clouds(32, generator), cross_entropy, options.steps)
    points, labels = draw_clouds(options.inputs, Generator().manual_seed(1))
    with torch.no_grad():
        right = (
            (torch.cat([model(part) for part in points.split(50)]).argmax(dim=1) == labels)
            .float()
            .mean()
        )
        print(
            f"{100 * right.item():.1f} % of {options.inputs} unseen clouds are classified correctly"
        )
        model, points = model.double(), points[:50].double()
        here, there = model(points), model(points + torch.tensor([1000.0, -500.0, 250.0]))
    change = float((there - here).abs().max() / here.abs().max())
    print(f"  largest change   {change:8.0e} of the output's size, 1,000 units away, in float64")


if __name__ == "__main__":
    main()
