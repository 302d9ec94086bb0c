r"""Which denominator of rotary: accuracy, size of outputs, gradients and half precision, at a rate tuned for each.

    python reproduction/studies/bounded_rotary.py --data-dir data --processes 2 \
        --evaluate "features (before)" "mixed, λ = 0.3" softmax

trains what is missing; `python reproduction/studies/tables.py` writes the tables of docs/which_kernel.md.

Every candidate is trained with AdamW at four rates on the tuning seeds; the rate of least validation loss is its rate
on that data set. The selection seeds then choose the default, and the evaluation seeds, which chose nothing, compare
it with what it replaces and with softmax. Test images are read once, at the end of a run.
"""

import argparse
import gzip
import itertools
import json
import math
import statistics
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from teka.data import load
from teka.functional import attention
from teka.models import Performer
from teka.nn import Attention, RelativeKernel

OUT = Path(__file__).with_name("bounded_rotary.jsonl.gz")
NEW = OUT.with_suffix("")  # cells that have been trained since, until all are there

DATA = {
    "digits": {"name": "digits", "image_size": 14, "validation_size": 137, "epochs": 12},
    "MNIST": {
        "name": "mnist",
        "image_size": 14,
        "train_size": 10000,
        "validation_size": 2000,
        "epochs": 3,
    },
    "Fashion-MNIST": {
        "name": "fashion-mnist",
        "image_size": 14,
        "train_size": 10000,
        "validation_size": 2000,
        "epochs": 3,
    },
}
CANDIDATES = {
    "softmax": {"bound": "1", "kernel": "softmax"},
    "features (before)": {"bound": "none", "normalizer": "features"},
    "features, ε = 0.1": {"bound": "none", "normalizer": "features", "epsilon": 0.1},
    "mixed, λ = 0.1": {"bound": "10", "normalizer": "mixed", "length_share": 0.1},
    "mixed, λ = 0.3": {"bound": "3.3", "normalizer": "mixed", "length_share": 0.3},
    "lengths": {"bound": "1", "normalizer": "lengths"},
    "non-negative": {"bound": "1", "normalizer": "nonnegative"},
}
RATES = (
    0.001,
    0.002,
    0.004,
    0.008,
    0.016,
)  # the last only where the one before is the best of the others
TUNING_SEEDS = {"digits": (100, 101), "MNIST": (100,), "Fashion-MNIST": (100,)}
SELECTION_SEEDS = (0, 1, 2, 3, 4, 5)
EVALUATION_SEEDS = (10, 11, 12, 13, 14, 15)
BATCH = 32
LOOKED_AT = 64  # images on which the weights of every row are summed


@dataclass(frozen=True)
class Cell:
    """One model to train.

    Args:
        data: A name of `DATA`.
        candidate: A name of `CANDIDATES`.
        rate: AdamW's largest learning rate.
        seed: Seed of the weights and of the order of images.
    """

    data: str
    candidate: str
    rate: float
    seed: int


def build(
    candidate: str, channels: int, *, dim: int = 32, depth: int = 2, heads: int = 2
) -> Performer:
    """A model of 14 × 14 pixels whose edges meet, every block of which has rotary."""
    options = CANDIDATES[candidate]
    model = Performer(
        14,
        channels,
        10,
        dim=dim,
        depth=depth,
        heads=heads,
        stem="convolution",
        periodic=True,
        pool="mean",
        kernel=options.get("kernel", "squared_relu"),
        epsilon=options.get("epsilon"),
    )
    for layer in model.modules():
        if isinstance(layer, RelativeKernel) and "normalizer" in options:
            layer.options["normalizer"] = str(options["normalizer"])
            layer.options["length_share"] = float(options.get("length_share", 1.0))
    return model


class Sizes:
    """The largest output of an attention over its largest value, in all calls since it was made.

    Args:
        model: The model whose attentions are watched.
    """

    def __init__(self, model: nn.Module) -> None:
        self.largest = 0.0
        for layer in model.modules():
            if isinstance(layer, Attention) and layer.value is not None:
                layer.value.register_forward_hook(self._see_values)
                layer.output.register_forward_pre_hook(self._see_outputs)

    def _see_values(self, module: nn.Module, inputs: object, output: Tensor) -> None:
        self._values = output.detach().abs().amax().item()

    def _see_outputs(self, module: nn.Module, inputs: tuple[Tensor]) -> None:
        self.largest = max(self.largest, inputs[0].detach().abs().amax().item() / self._values)


@torch.no_grad()
def gains(model: Performer, images: Tensor) -> tuple[float, float]:
    """Largest Σ_j |w_ij| over the denominator, and the share of rows where it is above 1, in all layers."""
    found = []

    def see(layer: nn.Module, inputs: tuple, output: Tensor) -> None:
        assert isinstance(layer, Attention)
        query, key, _ = layer.project(inputs[0])
        assert query is not None
        assert key is not None
        (group,) = layer.head_groups()
        unit = torch.eye(key.shape[2], dtype=torch.float64).expand(*key.shape[:3], -1)
        weights = attention(
            query.double(),
            key.double(),
            unit,
            kernel=group.kernel,
            relative=group.relative,
            grid=model.grid,
            backend="dense",
        )
        found.append(weights.abs().sum(dim=-1))

    hooks = [
        layer.register_forward_hook(see)
        for layer in model.modules()
        if isinstance(layer, Attention)
    ]
    model(images)
    for hook in hooks:
        hook.remove()
    gain = torch.stack(found)
    return float(gain.max()), float((gain > 1 + 1e-6).double().mean())


@torch.no_grad()
def logits_of(model: nn.Module, images: Tensor) -> Tensor:
    """Logits in float32, some images at a time."""
    return torch.cat([model(part).float() for part in images.split(250)])


def half_precision(model: Performer, images: Tensor, dtype: torch.dtype) -> dict[str, float]:
    """Shares of answers that are finite and that stay what they are, and the mean change of a logit over its spread."""
    exact = logits_of(model, images)
    found = logits_of(model.to(dtype), images.to(dtype))
    model.float()
    finite = found.isfinite().all(dim=1)
    change = (
        (found - exact)[finite].abs().mean() / exact.std()
        if finite.any()
        else torch.tensor(math.nan)
    )
    return {
        "finite": float(finite.double().mean()),
        "agree": float((finite & (found.argmax(1) == exact.argmax(1))).double().mean()),
        "change": float(change),
    }


def train(cell: Cell, data_dir: str | None) -> dict[str, object]:
    """Train one model and measure it; a tuning seed is measured on validation images alone."""
    torch.set_num_threads(1)
    options = dict(DATA[cell.data])
    epochs = int(options.pop("epochs"))
    data = load(**options, data_dir=data_dir)
    torch.manual_seed(cell.seed)
    model = build(cell.candidate, data.train.images.shape[1])
    sizes = Sizes(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cell.rate)
    steps = epochs * (len(data.train) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, cell.rate, steps, pct_start=0.1)
    order = torch.Generator().manual_seed(cell.seed)
    norms, largest_gain, start = [], 0.0, time.process_time()
    looked_at = data.validation.images[:LOOKED_AT]
    for _ in range(epochs):
        for rows in torch.randperm(len(data.train), generator=order).split(BATCH)[
            : steps // epochs
        ]:
            loss = cross_entropy(model(data.train.images[rows]), data.train.labels[rows])
            optimizer.zero_grad()
            loss.backward()
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
            optimizer.step()
            schedule.step()
        largest_gain = max(largest_gain, gains(model, looked_at)[0])
    seconds = time.process_time() - start
    training = {
        "largest_output": sizes.largest,
        "largest_gain": largest_gain,
        "gradient_norm": {"median": statistics.median(norms), "largest": max(norms)},
        "seconds": seconds,
    }
    model.eval()
    validation = float(
        cross_entropy(logits_of(model, data.validation.images), data.validation.labels)
    )
    result = {**asdict(cell), **training, "validation_loss": validation}
    if cell.seed in TUNING_SEEDS[cell.data]:
        return result
    images, labels = data.test.images, data.test.labels
    result["accuracy"] = float((logits_of(model, images).argmax(1) == labels).double().mean())
    views = {
        "test": images[:LOOKED_AT],
        "inverted": 1 - images[:LOOKED_AT],
        "blank": torch.zeros_like(images[:1]),
    }
    result["gain"] = {name: gains(model, view) for name, view in views.items()}
    result["half"] = {
        f"{name} {dtype}".replace("torch.", ""): half_precision(model, view, dtype)
        for name, view in (("test", images[:1000]), ("inverted", 1 - images[:1000]))
        for dtype in (torch.float16, torch.bfloat16)
    }
    return result


def read() -> dict[Cell, dict]:
    """Results so far: those of the committed file, and those of runs since."""
    found = {}
    texts = [gzip.decompress(OUT.read_bytes()).decode()] if OUT.exists() else []
    texts += [NEW.read_text(encoding="utf-8")] if NEW.exists() else []
    for line in "".join(texts).splitlines():
        result = json.loads(line)
        found[Cell(**{name: result[name] for name in Cell.__dataclass_fields__})] = result
    return found


def tuned_rate(results: dict[Cell, dict], data: str, candidate: str) -> float:
    """The rate of least validation loss on the tuning seeds, of those that were tried; infinite losses lose."""

    def loss(rate: float) -> float:
        cells = [Cell(data, candidate, rate, seed) for seed in TUNING_SEEDS[data]]
        mean = statistics.mean(
            results[cell]["validation_loss"] if cell in results else math.inf for cell in cells
        )
        return mean if math.isfinite(mean) else math.inf

    return min(RATES, key=loss)


def run(cells: list[Cell], data_dir: str | None, processes: int) -> None:
    """Train the cells that are missing, and add each result to the file beside the committed one."""
    done = read()
    with ProcessPoolExecutor(processes) as pool:
        for job in as_completed(
            [pool.submit(train, cell, data_dir) for cell in cells if cell not in done]
        ):
            result = job.result()
            with NEW.open("a", encoding="utf-8") as file:
                print(json.dumps(result, ensure_ascii=False), file=file)
            shown = {
                name: result.get(name)
                for name in (*Cell.__dataclass_fields__, "validation_loss", "accuracy", "seconds")
            }
            print(json.dumps(shown, ensure_ascii=False), flush=True)


def main() -> None:
    """Train what is missing, tuning first."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--evaluate", nargs="*", default=[], help="candidates to train on the evaluation seeds too"
    )
    options = parser.parse_args()
    pairs = list(itertools.product(DATA, CANDIDATES))
    for more in (RATES[:-1], RATES[-1:]):
        known = read()
        tuned = [
            (d, c) for d, c in pairs if more != RATES[-1:] or tuned_rate(known, d, c) >= RATES[-2]
        ]
        cells = [
            Cell(d, c, rate, seed) for d, c in tuned for rate in more for seed in TUNING_SEEDS[d]
        ]
        run(cells, options.data_dir, options.processes)
    results = read()
    rates = {(d, c): tuned_rate(results, d, c) for d, c in itertools.product(DATA, CANDIDATES)}
    run(
        [
            Cell(d, c, rates[d, c], s)
            for s, d, c in itertools.product(SELECTION_SEEDS, DATA, CANDIDATES)
        ],
        options.data_dir,
        options.processes,
    )
    run(
        [
            Cell(d, c, rates[d, c], s)
            for s, d, c in itertools.product(EVALUATION_SEEDS, DATA, options.evaluate)
        ],
        options.data_dir,
        options.processes,
    )


if __name__ == "__main__":
    main()
