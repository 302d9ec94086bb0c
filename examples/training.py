"""Training loop and report of the examples."""

import argparse
import copy
from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor, nn

from teka.audit import Movement, measure_responses, summarize
from teka.audit.statistics.metrics import NUMBERS
from teka.testing import equivariance_error

Batch = tuple[Tensor, Tensor]
Shift = int | tuple[int, ...]


def arguments(about: str | None, *, steps: int, inputs: int) -> argparse.Namespace:
    """Parse the options of an example."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--steps", type=int, default=steps, help="training steps (default: %(default)s)"
    )
    parser.add_argument(
        "--inputs", type=int, default=inputs, help="inputs of the test (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of weights and batches (default: %(default)s)"
    )
    return parser.parse_args()


def train(
    model: nn.Module,
    draw: Callable[[Generator], Batch],
    loss_of: Callable[[Tensor, Tensor], Tensor],
    steps: int,
    rate: float = 3e-3,
) -> None:
    """Train with AdamW and one cycle of the learning rate, on new inputs in every step."""
    generator = Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=max(steps, 2), pct_start=0.2
    )
    for step in range(steps):
        inputs, labels = draw(generator)
        loss = loss_of(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step < steps - 1:
            schedule.step()
        if (step + 1) % 100 == 0 or step + 1 == steps:
            print(f"  step {step + 1}: loss {loss.item():.3f}", flush=True)
    model.eval()


def report(
    name: str, model: nn.Module, inputs: Tensor, labels: Tensor | None, shifts: Sequence[Shift]
) -> None:
    """Print the metrics of an audit, and the largest change of the outputs in float64."""
    metrics = summarize(
        measure_responses(model, inputs, shifts, Movement("circular"), labels=labels)
    )
    print(f"{name}: {len(inputs)} inputs at {len(metrics.shifts)} circular shifts")
    for number in ("accuracy", "minimum_accuracy", "worst_shift_accuracy", "consistency"):
        if number in metrics.numbers:
            estimate = metrics.numbers[number]
            interval = (
                ""
                if estimate.lower == estimate.upper
                else f"  (95 %: {100 * estimate.lower:.1f} to {100 * estimate.upper:.1f})"
            )
            print(f"  {NUMBERS[number].label:<16} {100 * estimate.value:6.1f} %{interval}")
    error = equivariance_error(copy.deepcopy(model).double(), inputs[:20].double(), shifts)
    print(f"  {'largest change':<16} {error.maximum:8.0e} of the output's size, in float64")
