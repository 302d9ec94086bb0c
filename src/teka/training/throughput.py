"""Images and operations a second of a training, and the most operations a second that a device does."""

import copy
import statistics
import time
import warnings
from functools import cache, partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from lightning.fabric.utilities.throughput import get_available_flops
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.benchmark import Timer

from teka.flops import flop_counter

WARMUP_STEPS = 3
MEASURED = "measured matrix product"
SIDE, SIDE_ON_CPU = 4096, 1024
SECONDS = 0.15


class Peak(NamedTuple):
    """The most operations a second that a device does, two for each multiply-add, and where the number is from."""

    flops: float
    source: str


class Throughput(Callback):
    """Measures images and operations a second over the steps of each epoch, and logs them, of all processes together.

    The first steps of each start are not measured, and validation is not. An epoch without a measured step has no
    numbers.
    """

    def __init__(self, flops_per_image: int, *, num_images: int, batch_size: int, dtype: torch.dtype) -> None:
        self.flops_per_image = flops_per_image
        self.num_images, self.batch_size, self.dtype = num_images, batch_size, dtype
        self.peak: Peak | None = None
        self.images_per_second: list[float] = []
        self.flop_utilisation: list[float] = []
        self._warmup = WARMUP_STEPS
        self._since: float | None = None
        self._images = 0
        self._seconds = 0.0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find the devices' peak."""
        device = trainer.strategy.root_device
        one = peak(device, self.dtype)
        number = trainer.world_size
        self.peak = Peak(number * one.flops, one.source if number == 1 else f"{number} × {one.source}")

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock, unless steps are to be left out first."""
        self._images, self._seconds = 0, 0.0
        self._since = None if self._warmup else _now(pl_module.device)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: STEP_OUTPUT, batch: object, batch_idx: int
    ) -> None:
        """Count the images of a step, of all processes; stop the clock after the last one."""
        step, turn = divmod(batch_idx, trainer.accumulate_grad_batches)
        if turn < trainer.accumulate_grad_batches - 1:
            return
        if self._since is None:
            self._warmup -= 1
            self._since = None if self._warmup else _now(pl_module.device)
            return
        self._images += min(self.batch_size, self.num_images - step * self.batch_size)
        if trainer.is_last_batch:
            self._seconds = _now(pl_module.device) - self._since

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the epoch's numbers."""
        if not self._images or self.peak is None:
            return
        images = self._images / self._seconds
        flops = images * self.flops_per_image
        share = flops / self.peak.flops
        self.images_per_second.append(images)
        self.flop_utilisation.append(share)
        numbers = {"images_per_second": images, "tflops_per_second": flops / 1e12, "flop_utilisation": share}
        pl_module.log_dict(numbers, batch_size=1, sync_dist=trainer.world_size > 1)

    def state_dict(self) -> dict[str, object]:
        """The numbers of the epochs so far."""
        return {"images_per_second": self.images_per_second, "flop_utilisation": self.flop_utilisation}

    def load_state_dict(self, state_dict: dict) -> None:
        """Resume from there."""
        self.images_per_second = list(state_dict["images_per_second"])
        self.flop_utilisation = list(state_dict["flop_utilisation"])

    def summary(self) -> dict[str, object]:
        """What is kept of a finished training: medians over the epochs, None if no epoch was measured."""
        return {
            "train_images_per_second": _median(self.images_per_second),
            "training_flops_per_image": self.flops_per_image,
            "flop_utilisation": _median(self.flop_utilisation),
            "peak_tflops": _median([] if self.peak is None else [self.peak.flops / 1e12]),
            "peak_source": None if self.peak is None else self.peak.source,
        }


def training_flops_per_image(model: nn.Module, images: Float[Tensor, "2 channels height width"]) -> int:
    """Operations of the matrix products and convolutions of one image's forward and backward pass.

    They are counted on a copy of the model, on the CPU, so that weights, statistics and random state stay; a model that
    is to be compiled or to compute activations again is copied before it is prepared for that.
    """
    copied = copy.deepcopy(model).train()
    with torch.random.fork_rng(devices=[]), flop_counter() as counter:
        cross_entropy(copied(images), torch.zeros(len(images), dtype=torch.long)).backward()
    return counter.get_total_flops() // len(images)


def _median(numbers: list[float]) -> float | None:
    return float(f"{statistics.median(numbers):.4g}") if numbers else None


def peak(device: torch.device, dtype: torch.dtype) -> Peak:
    """Peak of a device for products of a type: of a GPU by its maker's figures, else that of a large product.

    The figures are those of Lightning's table, for products without sparsity.
    """
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*(FLOPs not found|does not support).*")
            # The table's H100 NVL is a pair of cards.
            known = None if "H100 NVL" in name else get_available_flops(device, dtype)
        if known:
            return Peak(known, f"Lightning's table for {name}, {_name(dtype)}")
    return _measured(device, dtype, torch.get_num_threads())


@cache
def _measured(device: torch.device, dtype: torch.dtype, num_threads: int) -> Peak:
    """The fastest of several products of square matrices."""
    side = SIDE_ON_CPU if device.type == "cpu" else SIDE
    generator = Generator().manual_seed(0)  # zeros and ones would take less power than numbers do
    left, right = (torch.randn(side, side, generator=generator).to(device, dtype) for _ in range(2))
    timer = Timer("torch.mm(left, right)", timer=partial(_now, device), globals=locals(), num_threads=num_threads)
    fastest = min(timer.blocked_autorange(min_run_time=SECONDS).times)
    threads = f", {num_threads} {'thread' if num_threads == 1 else 'threads'}" if device.type == "cpu" else ""
    return Peak(2 * side**3 / fastest, f"{MEASURED}, {side} × {side}, {_name(dtype)}{threads}")


def _now(device: torch.device) -> float:
    """The time when a device has done what it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
