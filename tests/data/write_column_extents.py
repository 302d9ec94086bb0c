"""Write column_extents.npz: the outermost non-zero columns of test images at 32×32.

The images are those of MNIST and Fashion-MNIST.

    python tests/data/write_column_extents.py DATA_DIR

It lets the tests count Horn et al.'s selection on the real data sets without their files.
"""

import sys
from pathlib import Path

import numpy as np

from teka.data import load


def main() -> None:
    extents = {}
    for name in ("mnist", "fashion-mnist"):
        test = load(name, data_dir=sys.argv[1], image_size=32).test
        filled = (test.images.numpy() != 0).any(axis=(1, 2))
        extents[f"{name}/first"] = filled.argmax(axis=1).astype(np.uint8)
        extents[f"{name}/last"] = (31 - filled[:, ::-1].argmax(axis=1)).astype(np.uint8)
        extents[f"{name}/label"] = test.labels.numpy().astype(np.uint8)
    target = Path(__file__).with_name("column_extents.npz")
    temporary = target.with_name("column_extents.partial.npz")
    np.savez_compressed(temporary, **extents)
    temporary.replace(target)


if __name__ == "__main__":
    main()
