"""ONNX files, run by onnxruntime."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from teka.audit.adapters.preprocessing import Preprocessing
from teka.audit.adapters.reading import READING, Reading
from teka.audit.adapters.subject import Subject, read_as, spoken_names
from teka.audit.adapters.transformers_model import PROCESSOR_FILE, read_processor_file
from teka.checks import height_and_width
from teka.errors import require, wrong_value
from teka.files import read_json

_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}
_CHANNELS = (1, 3)


class OnnxFunction:
    """A session of onnxruntime as a function of images in [0, 1]; batches of a fixed size are filled up with copies."""

    def __init__(self, session: Any, transform: Preprocessing) -> None:
        self.session, self.transform = session, transform
        (self.input,) = session.get_inputs()
        outputs = [one.name for one in session.get_outputs()]
        self.output = "logits" if "logits" in outputs else outputs[0]
        batch_size = self.input.shape[0]
        self.batch_size = batch_size if isinstance(batch_size, int) and batch_size > 0 else None
        self.channels_last = _is_channels_last(self.input.shape)

    def __call__(self, images: Float[Tensor, "batch channels height width"]) -> Tensor:
        """What the model says of images."""
        placed = self.transform.normalize(images.detach().to("cpu", torch.float32))
        if self.channels_last:
            placed = placed.permute(0, 2, 3, 1)
        array = np.ascontiguousarray(placed.numpy().astype(_TYPES[self.input.type]))
        size = self.batch_size or len(array)
        parts = [self._run(array[start : start + size], size) for start in range(0, len(array), size)]
        return torch.from_numpy(np.concatenate(parts).astype(np.float32)).to(images.device)

    def _run(self, part: np.ndarray, size: int) -> np.ndarray:
        filled = np.concatenate([part, np.repeat(part[-1:], size - len(part), axis=0)]) if len(part) < size else part
        return self.session.run([self.output], {self.input.name: filled})[0][: len(part)]


def load_onnx(path: str | Path, reading: Reading = READING) -> Subject:
    """The model of an ONNX file of one input, (B, C, H, W) or (B, H, W, C), and its answer "logits", or the first."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise wrong_value("model", str(path), "an ONNX file; there is none")
    session = _session(require("onnxruntime", "this model needs", "teka[audit]"), file, reading.device)
    inputs = session.get_inputs()
    if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].type not in _TYPES:
        came = ", ".join(f"{one.name}: {one.type} {one.shape}" for one in inputs)
        raise wrong_value(f"the inputs of {path}", came, "one of images, floating point with four axes")
    _, *shape = inputs[0].shape
    height, width, channels = shape if _is_channels_last(inputs[0].shape) else (shape[1], shape[2], shape[0])
    in_channels = channels if isinstance(channels, int) else None
    size = (height, width) if isinstance(height, int) and isinstance(width, int) else None
    if reading.input_size is not None:
        wanted = height_and_width("input_size", reading.input_size)
        if size not in (None, wanted):
            raise wrong_value("input_size", reading.input_size, f"{size}, as {path} takes no other")
        size = wanted
    transform = read_processor_file(file.parent, in_channels or 3)
    note = "" if transform else f"no {PROCESSOR_FILE} lies beside the file: images in [0, 1] go in as they are"
    if transform is None:
        transform = Preprocessing(in_channels, size)
    elif size is not None and size != transform.crop:
        transform, _ = transform.resized_to(size)
    transform, _ = replace(reading, input_size=None).fit(transform)
    config = file.parent / "config.json"
    names = spoken_names(read_json(config).get("id2label") if config.is_file() else None)
    function = OnnxFunction(session, transform)
    classes = next(one.shape for one in session.get_outputs() if one.name == function.output)
    num_classes = classes[1] if len(classes) == 2 and isinstance(classes[1], int) else None
    return Subject(
        name=file.stem,
        kind="onnx",
        function=function,
        input_size=size if size is not None else transform.crop,
        in_channels=in_channels,
        class_names=names if names is None or num_classes in (None, len(names)) else None,
        num_classes=num_classes,
        transform=transform,
        weights_hash=_hash(file),
        note=note,
    )


def _session(library: Any, file: Path, device: torch.device | str | None) -> Any:
    kind = "cpu" if device is None else torch.device(device).type
    provider = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}.get(kind)
    if provider not in library.get_available_providers():
        raise wrong_value("device", str(device), f"one that onnxruntime has: {library.get_available_providers()}")
    options = library.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors, which are raised as well
    with read_as(str(file), "an ONNX file that onnxruntime can run"):
        return library.InferenceSession(str(file), options, providers=[provider])


def _is_channels_last(shape: Sequence[object]) -> bool:
    return shape[3] in _CHANNELS and shape[1] not in _CHANNELS


def _hash(file: Path) -> str:
    """SHA-256 of the file and of the files of weights that lie beside it under its name, such as model.onnx.data."""
    beside = (other for other in file.parent.iterdir() if other.name.startswith((f"{file.name}.", f"{file.name}_")))
    digest = hashlib.sha256()
    for one in (file, *sorted(other for other in beside if other.is_file())):
        with one.open("rb") as opened:
            while block := opened.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
