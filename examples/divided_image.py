"""Train on one large picture whose tokens are divided over processes.

    python examples/divided_image.py --processes 2 --side 256

Somewhere in noise is a landmark; every pixel says in which direction it lies, (cos, sin) of 2π Δ / 32 for rows and
columns, on a torus that is 32 long whatever the number of pixels. Each process has some rows, and of the others nothing
but sums whose size does not depend on the picture's. DistributedDataParallel averages gradients, so that the loss is
times the number of processes. On GPUs give it "nccl". With several pictures too, take a mesh,
init_device_mesh("cuda", (2, 4), mesh_dim_names=("data", "tokens")), nn.shard_tokens(model, mesh["tokens"]), and
DistributedDataParallel or fully_shard over all eight.
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

EDGE = 32.0  # of the torus, whatever the number of pixels


class Pointer(torch.nn.Module):
    """Two blocks of attention over pixels, each of which answers for itself."""

    def __init__(self, dim: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.stem = torch.nn.Linear(1, dim)
        self.blocks = torch.nn.ModuleList(nn.TransformerBlock(dim, heads) for _ in range(2))
        self.head = torch.nn.Linear(dim, 4)

    def forward(self, pixels: Tensor, grid: Grid) -> Tensor:
        """Answers (batch, tokens, 4) for pixels (batch, tokens, 1), a process' own ones of the whole grid."""
        tokens = self.stem(pixels)
        for block in self.blocks:
            tokens = block(tokens, grid)
        return self.head(tokens)


def draw(grid: Grid, count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Pixels (count, L, 1) and answers (count, L, 4)."""
    pixels = 0.3 * torch.randn(count, grid.num_tokens, 1, generator=generator)
    places = grid.positions()
    landmark = places[torch.randint(grid.num_tokens, (count,), generator=generator)]
    offsets = (places[None] - landmark[:, None]) % EDGE
    pixels[(offsets < 1).all(dim=-1)] += 5
    angle = 2 * math.pi * offsets / EDGE
    return pixels, torch.cat([angle.cos(), angle.sin()], dim=-1)


def run(rank: int, given: argparse.Namespace, store: str) -> None:
    """One process: the same pictures as all, and its own rows of them."""
    torch.set_num_threads(1)
    size = given.processes
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size
    )
    grid = Grid((given.side, given.side), spacing=EDGE / given.side, periodic=True)
    start, stop = (given.side * one // size * given.side for one in (rank, rank + 1))
    torch.manual_seed(0)
    model = nn.shard_tokens(Pointer(), distributed.group.WORLD)
    trained = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator, began = Generator().manual_seed(0), time.perf_counter()
    for step in range(given.steps):
        pixels, answers = draw(grid, 1, generator)
        errors = (trained(pixels[:, start:stop], grid) - answers[:, start:stop]).square()
        loss = errors.sum() / answers.numel() * size
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 50 == 0 or step + 1 == given.steps:
            whole = loss.detach() / size
            distributed.all_reduce(whole)
            if rank == 0:
                print(f"step {step + 1}: mean squared error {whole.item():.3f}", flush=True)
    seconds = (time.perf_counter() - began) / given.steps
    memory = torch.tensor(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    distributed.all_reduce(memory, distributed.ReduceOp.MAX)

    small = Grid((8 * size, 9), periodic=True)
    pixels, _ = draw(small, given.inputs, Generator().manual_seed(1))
    parts = [torch.empty(given.inputs, 72, 4, dtype=torch.float64) for _ in range(size)]
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
            f"  largest change   {change:8.0e} of the output's size, from all tokens in one process, in float64"
        )
    distributed.destroy_process_group()


def main() -> None:
    """As many processes as are asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--processes", type=int, default=2, help="of one thread each (default: %(default)s)"
    )
    parser.add_argument(
        "--side", type=int, default=64, help="of the picture, in pixels (default: %(default)s)"
    )
    parser.add_argument(
        "--steps", type=int, default=300, help="training steps (default: %(default)s)"
    )
    parser.add_argument(
        "--inputs", type=int, default=8, help="pictures of the comparison (default: %(default)s)"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (given, f"{folder}/store"), nprocs=given.processes)


if __name__ == "__main__":
    main()
