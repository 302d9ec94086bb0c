"""The command `all-shifts`, which counts images whose prediction no circular shift changes."""

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from teka.audit import wilson_interval
from teka.cli.app import CommandLine
from teka.data import load
from teka.errors import wrong_value
from teka.files import check_file_is_writable, read_json, write_json
from teka.models import load as load_model
from teka.models import read_config
from teka.provenance import gather_provenance

BATCH_SIZE = 250


def count_unchanged_images(
    model: str,
    /,
    *,
    data: str,
    out: Path,
    data_dir: str | None = None,
    images: int | None = None,
    command: CommandLine = "",
) -> None:
    """Count the test images whose prediction is the same at every circular shift.

    The predictions are computed in float32. Run the same command again to resume an interrupted
    measurement after the last complete batch of images.

    Args:
        model: Folder of a saved model, or the name of a packaged model.
        data: Name of the data set.
        out: JSON file of the result.
        data_dir: Folder with the files of the data set.
        images: Number of test images, drawn with a fixed seed. By default all of them.
        command: The command line.
    """
    check_file_is_writable("out", out)
    saved: dict[str, Any] = read_json(out) if out.is_file() else {"model": model, "num_changes": []}
    if saved["model"] != model:
        raise wrong_value("out", str(out), f"a new file, or the results of the model {model}")
    torch.set_num_threads(1)
    network = load_model(model)
    test = load(data, data_dir=data_dir, image_size=read_config(model).image_size).test.images
    order = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))[:images]
    num_changes = saved["num_changes"]
    for rows in order[len(num_changes) :].split(BATCH_SIZE):
        num_changes += count_changing_shifts(network, test[rows]).tolist()
        num_unchanged = num_changes.count(0)
        result = {
            "model": model,
            "images": len(num_changes),
            "shifts": test[0, 0].numel(),
            "unchanged_images": num_unchanged,
            "interval": wilson_interval(num_unchanged, len(num_changes)),
            "changed_predictions": sum(num_changes),
            **gather_provenance(command),
        }
        print(result, flush=True)
        write_json(out, {**result, "num_changes": num_changes})


@torch.inference_mode()
def count_changing_shifts(
    model: nn.Module, images: Float[Tensor, "images channels height width"]
) -> Tensor:
    """Count, for each image, the circular shifts that change the model's prediction."""
    expected = model(images).argmax(dim=1)
    num_changes = torch.zeros(len(images), dtype=torch.long)
    height, width = images.shape[2:]
    for dy in range(height):
        for dx in range(width):
            num_changes += model(images.roll((dy, dx), (2, 3))).argmax(dim=1) != expected
    return num_changes
