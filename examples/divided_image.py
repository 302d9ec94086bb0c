"""Train on one large image whose tokens are divided over processes.

    python examples/divided_image.py --processes 2 --side 256

The image contains noise and a landmark. Each pixel predicts the direction of the landmark. Every
process has some rows of the image, and exchanges only sums whose size does not depend on the number
of pixels. DistributedDataParallel averages gradients over processes, so the loss is multiplied by
their number. On GPUs, use the backend "nccl". To divide batches as well, use a device mesh:
`init_device_mesh("cuda", (2, 4), mesh_dim_names=("data", "tokens"))`,
`nn.shard_tokens(model, mesh["tokens"])`, and DistributedDataParallel over all processes.
"""

import argparse
import math
import resource
import tempfile
import time

import torch
from torch import Generator, Tensor, distributed
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from teka import Grid, nn

EDGE = 32.0  # Side of the image in physical units, for any number of pixels


class Pointer(torch.nn.Module):
    """Two transformer blocks and a prediction for each pixel."""

    def __init__(self, dim: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.stem = torch.nn.Linear(1, dim)
        self.blocks = torch.nn.ModuleList(nn.TransformerBlock(dim, heads) for _ in range(2))
        self.head = torch.nn.Linear(dim, 4)

    def forward(self, pixels: Tensor, grid: Grid) -> Tensor:
        """Return predictions (batch, tokens, 4) for the pixels (batch, tokens, 1) of a process."""
        tokens = self.stem(pixels)
        for block in self.blocks:
            tokens = block(tokens, grid)
        return self.head(tokens)


def draw(grid: Grid, count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Draw pixels (count, L, 1) and targets (count, L, 4)."""
    pixels = 0.3 * torch.randn(count, grid.num_tokens, 1, generator=generator)
    places = grid.positions()
    landmark = places[torch.randint(grid.num_tokens, (count,), generator=generator)]
    offsets = (places[None] - landmark[:, None]) % EDGE
    pixels[(offsets < 1).all(dim=-1)] += 5
    angle = 2 * math.pi * offsets / EDGE
    return pixels, torch.cat([angle.cos(), angle.sin()], dim=-1)


def run(rank: int, options: argparse.Namespace, store: str) -> None:
    """Run one process, which draws the same images as all and keeps its own rows."""
    torch.set_num_threads(1)
    size = options.processes
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size
    )
    grid = Grid((options.side, options.side), spacing=EDGE / options.side, periodic=True)
    start, stop = (options.side * index // size * options.side for index in (rank, rank + 1))
    torch.manual_seed(0)
    model = nn.shard_tokens(Pointer(), distributed.group.WORLD)
    trained = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator, began = Generator().manual_seed(0), time.perf_counter()
    for step in range(options.steps):
        pixels, targets = draw(grid, 1, generator)
        errors = (trained(pixels[:, start:stop], grid) - targets[:, start:stop]).square()
        loss = errors.sum() / targets.numel() * size
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 50 == 0 or step + 1 == options.steps:
            whole = loss.detach() / size
            distributed.all_reduce(whole)
            if rank == 0:
                print(f"step {step + 1}: mean squared error {whole.item():.3f}", flush=True)
    seconds = (time.perf_counter() - began) / options.steps
    memory = torch.tensor(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    distributed.all_reduce(memory, distributed.ReduceOp.MAX)

    small = Grid((8 * size, 9), periodic=True)
    pixels, _ = draw(small, options.inputs, Generator().manual_seed(1))
    parts = [torch.empty(options.inputs, 72, 4, dtype=torch.float64) for _ in range(size)]
    with torch.no_grad():
        model.double()
        pixels = pixels.double()
        distributed.all_gather(parts, model(pixels[:, 72 * rank : 72 * (rank + 1)], small))
        alone = nn.shard_tokens(model, None)(pixels, small)
    if rank == 0:
        change = float((torch.cat(parts, dim=1) - alone).abs().max() / alone.abs().max())
        print(
            f"{size} processes, {grid.num_tokens:,} tokens: {seconds:.2f} s a step, {memory:.0f} MB in each"
        )
        print(
            f"  largest change   {change:8.0e} of the output's size, compared with one process, in float64"
        )
    distributed.destroy_process_group()


def main() -> None:
    """Start the processes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=2,
        help="number of processes with one thread (default: %(default)s)",
    )
    parser.add_argument(
        "--side", type=int, default=64, help="side of the image in pixels (default: %(default)s)"
    )
    parser.add_argument(
        "--steps", type=int, default=300, help="training steps (default: %(default)s)"
    )
    parser.add_argument(
        "--inputs", type=int, default=8, help="images for the comparison (default: %(default)s)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (options, f"{folder}/store"), nprocs=options.processes)


if __name__ == "__main__":
    main()
