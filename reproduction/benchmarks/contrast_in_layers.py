"""How unevenly the layers of the studies' models spread a query's weight over keys before they have learnt anything.

    python reproduction/benchmarks/contrast_in_layers.py --data-dir data

writes reproduction/benchmarks/contrast_in_layers.json and prints the table: for every kernel with rotary at 14 × 14 pixels
(reproduction/studies/kernels.yaml) and at 28 × 28 (reproduction/studies/large.yaml), for each layer the root mean square of the entries of
queries, and the contrast of the median query and of the class token's: the standard deviation of a query's weights over
the weight 1 / L of a plain mean. Means over four training images of MNIST, heads and three seeds. The weights are the
layer's own, positions included: its output where the values are unit vectors.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from reproduction.study import Study, read_study
from reproduction.study.run_cell import load_cell_data
from reproduction.study.study import Cell
from teka.files import write_json
from teka.functional import attention
from teka.nn import Attention
from teka.provenance import provenance

IMAGES, SEEDS = 4, (0, 1, 2)
VARIANTS = (
    "softmax × rotary",
    "softmax × rotary + normalized",
    "squared relu × rotary",
    "focused × rotary",
)


def models(data_dir: str) -> list[tuple[str, nn.Module, Tensor]]:
    """The models of the first seeds, as they are before training, with a name and images."""
    small, large = (
        read_study(f"reproduction/studies/{name}.yaml") for name in ("kernels", "large")
    )
    places = [
        (small, {"data": "mnist", "kernel": name, "position": "rotary"})
        for name in small.factors["kernel"]
    ]
    places += [(large, {"data": "mnist", "variant": name}) for name in VARIANTS]
    return [
        build(make_cell(study, labels, seed), data_dir)
        for study, labels in places
        for seed in SEEDS
    ]


def make_cell(study: Study, labels: dict[str, str], seed: int) -> Cell:
    """The cell of a study; no rate is chosen, since nothing is trained."""
    return study.make_cell(
        labels, seed, {study.tune.field: study.tune.values[0]} if study.tune else None
    )


def build(cell: Cell, data_dir: str) -> tuple[str, nn.Module, Tensor]:
    """A cell's name, model and images."""
    dataset = load_cell_data(cell.run, data_dir)
    torch.manual_seed(cell.run.seed)
    model = cell.run.make_model(
        image_size=dataset.image_size,
        in_channels=dataset.in_channels,
        num_classes=dataset.num_classes,
    )
    name = next(label for factor, label in cell.labels.items() if factor in ("kernel", "variant"))
    return (
        f"{name}, {dataset.image_size[0]} × {dataset.image_size[1]}",
        model.eval(),
        dataset.train.images[:IMAGES],
    )


def measure(model: nn.Module, images: Tensor) -> list[dict[str, float]]:
    """For every layer the size of its queries and the contrast of its weights."""
    found: list[dict[str, float]] = []

    def look(layer: nn.Module, arguments: tuple[Any, ...]) -> None:
        assert isinstance(layer, Attention)
        tokens, grid, _, num_prefix_tokens, *_ = arguments
        query, key, _ = layer.project(tokens)
        assert query is not None
        assert key is not None
        num_tokens = key.shape[2]
        units = torch.eye(num_tokens).expand(*key.shape[:2], -1, -1)
        (group,) = layer.head_groups()
        # The last layer, of which the class token alone is wanted, has no positions.
        places = (
            {} if group.relative is None else {"grid": grid, "num_prefix_tokens": num_prefix_tokens}
        )
        weights = attention(
            query,
            key,
            units,
            kernel=group.kernel,
            relative=group.relative,
            backend="dense",
            **places,
        )
        contrast = (num_tokens * weights).std(dim=-1)
        found.append(
            {
                "size": query.square().mean().sqrt().item(),
                "contrast": contrast.median().item(),
                "class_token": contrast[:, :, 0].mean().item(),
            }
        )

    for module in model.modules():
        if isinstance(module, Attention):
            module.register_forward_pre_hook(look)
    with torch.no_grad():
        model(images)
    return found


def main() -> None:
    """Measure every model, print the table and write the JSON file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    measured: dict[str, list[list[dict[str, float]]]] = {}
    for name, model, images in models(arguments.data_dir):
        measured.setdefault(name, []).append(measure(model, images))
    rows = []
    for name, seeds in measured.items():
        for layer, found in enumerate(zip(*seeds, strict=True), 1):
            numbers = {key: sum(one[key] for one in found) / len(found) for key in found[0]}
            rows.append({"model": name, "layer": layer, **numbers})
            print(
                f"{name:<40} layer {layer}  "
                + "  ".join(f"{key} {value:6.3f}" for key, value in numbers.items())
            )
    command = " ".join(["python", "reproduction/benchmarks/contrast_in_layers.py", *sys.argv[1:]])
    write_json(
        arguments.out, {**provenance(command), "images": IMAGES, "seeds": list(SEEDS), "rows": rows}
    )


if __name__ == "__main__":
    main()
