"""Export a model to ONNX, for images of any number, and run it without PyTorch.

    python examples/to_onnx.py

The graph has the linear form: no tensor in it has a number for every pair of tokens. Needs onnx, onnxscript and
onnxruntime.
"""

import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch

from teka.models import Performer
from training import arguments

SIDE = 32


def main() -> None:
    """Export, compare and time."""
    given = arguments(__doc__, steps=20, inputs=16)
    torch.manual_seed(given.seed)
    model = Performer((SIDE, SIDE), 1, 10, dim=64, depth=2, heads=4, pool="mean").eval()
    images = torch.rand(given.inputs, 1, SIDE, SIDE)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        number = {"images": {0: torch.export.Dim("number", min=1, max=2**20)}}
        program = torch.onnx.export(
            model, (images,), dynamo=True, dynamic_shapes=number, verbose=False
        )
        assert program is not None
        program.save(path)
        nodes = len(onnx.load(path).graph.node)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        found, one = (
            np.asarray(session.run(None, {name: part.numpy()})[0]) for part in (images, images[:1])
        )
        began = time.perf_counter()
        for _ in range(given.steps):
            session.run(None, {name: images.numpy()})
        seconds = (time.perf_counter() - began) / given.steps
    with torch.no_grad():
        expected = model(images).numpy()
    print(
        f"{nodes} nodes; {1000 * seconds:.0f} ms for {given.inputs} images of {SIDE} × {SIDE} tokens"
    )
    whole = np.abs(found - expected).max() / np.abs(expected).max()
    print(f"  largest change   {whole:8.0e} of the output's size, from PyTorch, in float32")
    alone = np.abs(one - found[:1]).max() / np.abs(expected).max()
    print(f"  largest change   {alone:8.0e} of the output's size, of an image alone, in float32")


if __name__ == "__main__":
    main()
