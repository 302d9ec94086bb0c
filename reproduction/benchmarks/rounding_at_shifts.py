"""Why one model of reproduction/studies/large.yaml changes its logits under shifts by ten times its noise floor.

    python reproduction/benchmarks/rounding_at_shifts.py --data-dir data

trains that cell again (two minutes on one core) and writes reproduction/benchmarks/rounding_at_shifts.json: at each shift of the
study what float32 rounds (against float64 on the same shifted images), and the largest change of the logits under the
shifts in both. The noise floor in a cell's file is what is rounded on the images where they are.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import torch

from reproduction.study import read_study
from reproduction.study.cells import find_cell
from reproduction.study.run_cell import load_cell_data, run_model
from teka.files import write_json
from teka.provenance import provenance
from teka.testing import equivariance_error
from teka.training.train import train

LABELS, SEED, IMAGES = {"data": "fashion-mnist", "variant": "squared relu × rotation"}, 1, 16
CELLS, CELL = (
    Path("reproduction/studies/large/cells"),
    "fashion-mnist--squared-relu-rotation--seed-1",
)


def main() -> None:
    """Train the cell, measure it, print and write the numbers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    study = read_study("reproduction/studies/large.yaml")
    cell = study.make_cell(LABELS, SEED)
    dataset = load_cell_data(cell.run, arguments.data_dir)
    with tempfile.TemporaryDirectory(prefix="teka-") as folder:
        run = cell.run.replace(data_dir=arguments.data_dir)
        train(run, folder, dataset=dataset, progress_bar=False, throughput=False)
        model = run_model(cell, dataset, Path(folder), study.measure)
    # The images of the cell: the first of those that the study measures.
    chosen = torch.randperm(len(dataset.test), generator=torch.Generator().manual_seed(0))[:IMAGES]
    images = dataset.test.images[chosen]
    mode, shifts = study.measure.mode, study.measure.shifts
    single = equivariance_error(model, images, shifts, mode=mode).maximum
    rounding = {}
    for shift in shifts:
        moved = torch.roll(images, tuple(shift), dims=(2, 3))
        with torch.inference_mode():
            answer = model(moved).double()
            exact = model.double()(moved.double())
            model.float()
        rounding[str(tuple(shift))] = ((answer - exact).norm() / exact.norm()).item()
    double = equivariance_error(model.double(), images.double(), shifts, mode=mode).maximum
    stored = find_cell(CELLS, CELL) or {}
    numbers = {
        "rounding": rounding,
        "change_float32": single,
        "change_float64": double,
        "change_of_the_cell": stored["equivariance_error"],
        "noise_floor_of_the_cell": stored["noise_floor"],
    }
    for name, number in numbers.items():
        print(f"{name}: {number}")
    command = " ".join(["python", "reproduction/benchmarks/rounding_at_shifts.py", *sys.argv[1:]])
    write_json(arguments.out, {**provenance(command), "labels": LABELS, "seed": SEED, **numbers})


if __name__ == "__main__":
    main()
