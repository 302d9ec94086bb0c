"""Export a model to ONNX for any batch size, and run it without PyTorch.

    python examples/to_onnx.py

The graph has the linear form of attention, without a tensor of all pairs of tokens. The script
needs onnx, onnxscript and onnxruntime.
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
    """Export a model, compare its outputs, and measure the time."""
    options = arguments(__doc__, steps=20, inputs=16)
    torch.manual_seed(options.seed)
    model = Performer((SIDE, SIDE), 1, 10, dim=64, depth=2, heads=4, pool="mean").eval()
    images = torch.rand(options.inputs, 1, SIDE, SIDE)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        dynamic = {"images": {0: torch.export.Dim("batch", min=1, max=2**20)}}
        program = torch.onnx.export(
            model, (images,), dynamo=True, dynamic_shapes=dynamic, verbose=False
        )
        assert program is not None
        program.save(path)
        nodes = len(onnx.load(path).graph.node)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        outputs, single = (
            np.asarray(session.run(None, {name: part.numpy()})[0]) for part in (images, images[:1])
        )
        began = time.perf_counter()
        for _ in range(options.steps):
            session.run(None, {name: images.numpy()})
        seconds = (time.perf_counter() - began) / options.steps
    with torch.no_grad():
        expected = model(images).numpy()
    print(
        f"{nodes} nodes; {1000 * seconds:.0f} ms for {options.inputs} images of {SIDE} × {SIDE} tokens"
    )
    whole = np.abs(outputs - expected).max() / np.abs(expected).max()
    print(
        f"  largest change   {whole:8.0e} of the output's size, compared with PyTorch, in float32"
    )
    alone = np.abs(single - outputs[:1]).max() / np.abs(expected).max()
    print(
        f"  largest change   {alone:8.0e} of the output's size, for a batch of one image, in float32"
    )


if __name__ == "__main__":
    main()
