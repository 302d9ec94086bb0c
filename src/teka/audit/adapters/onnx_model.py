"""Loading of ONNX files, which onnxruntime runs."""

import hashlib
import importlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from teka.audit.adapters.load_options import DEFAULT_LOAD_OPTIONS, LoadOptions
from teka.audit.adapters.loaded_model import LoadedModel, read_as, read_class_names
from teka.audit.adapters.preprocessing import Preprocessing
from teka.audit.adapters.transformers_model import PROCESSOR_FILE, read_processor_file
from teka.audit.model_output import num_classes_of
from teka.checks import check_image_size
from teka.data import Normalize
from teka.errors import EXTERNAL_ERRORS, did_you_mean, require, wrong_value
from teka.files import expand_user, read_json

_TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(uint8)": np.uint8,  # levels 0 … 255
}
_FLOATING = ("tensor(float)", "tensor(float16)", "tensor(double)")
_WHOLE = ("tensor(int64)", "tensor(int32)", "tensor(bool)")
_MAPS = "seq(map("  # probabilities by scikit-learn converters: a dictionary for each image
_LEVELS = 255
_NOT_TENSORS = ("ZipMap", "SequenceConstruct", "SequenceEmpty", "SequenceInsert", "SplitToSequence")
_CHANNELS = (1, 3)
_MOST_BYTES = 2**31 - 2**20  # largest graph that can be passed in memory


class OnnxNode(nn.Module):
    """Node of an ONNX file as a layer, which returns the output that onnxruntime computed."""

    given: Tensor

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the first output of the node."""
        return self.given


class OnnxFunction(nn.Module):
    """ONNX model as a function of images in [0, 1].

    If the graph is given, its nodes are layers. When a layer has a hook, a second session computes
    the outputs of all nodes, and the layers are called in the order of execution. A layer has the
    name of its node or of its output, adapted to the rules for module names.

    Args:
        session: Session of onnxruntime.
        transform: Preprocessing of the model.
        graph: Graph of the file, or None.
        output: Name of the output to measure. Default: see `choose_output`.
    """

    def __init__(
        self, session: Any, transform: Preprocessing, graph: Any = None, output: str | None = None
    ) -> None:
        super().__init__()
        self.session, self.transform = session, transform
        (self.input,) = session.get_inputs()
        self.output = choose_output(session.get_outputs(), output).name
        batch_size = self.input.shape[0]
        self.batch_size = batch_size if isinstance(batch_size, int) and batch_size > 0 else None
        self.channels_last = _is_channels_last(self.input.shape)
        self._graph, self._inner = graph, None
        self._layers: dict[str, str] = {}  # names of layers by their outputs
        self._nodes: dict[str, Any] = {}  # nodes by their outputs
        for node in () if graph is None else graph.graph.node:
            # An omitted output has no name. Lists and dictionaries cannot be compared.
            if not (node.output and node.output[0]) or node.op_type in _NOT_TENSORS:
                continue
            name = self._free_name(node.name or node.output[0])
            self.add_module(name, _layer_of(node))
            self._layers[node.output[0]], self._nodes[node.output[0]] = name, node
        for tensor in () if graph is None else graph.graph.initializer:
            if len(tensor.dims) in (3, 4) and tensor.dims[0] == 1:  # may be position embeddings
                self.register_buffer(
                    self._free_name(tensor.name), torch.zeros(*tensor.dims), persistent=False
                )
        self.eval()

    def _free_name(self, name: str) -> str:
        """Return a valid name for a submodule that is not used yet."""
        name = name.replace(".", "_") or "unnamed"
        while hasattr(self, name):
            name += "_"
        return name

    def __deepcopy__(self, memo: object) -> "OnnxFunction":
        raise TypeError("onnxruntime computes in the precision of the file")

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Tensor:
        """Return the output of the model for images."""
        placed = self.transform.normalize(images.detach().to("cpu", torch.float32))
        if self.input.type == "tensor(uint8)":
            placed = (placed * _LEVELS).round().clamp(0, _LEVELS)
        if self.channels_last:
            placed = placed.permute(0, 2, 3, 1)
        if not any(layer._forward_hooks for layer in self.children()):
            return self._run(self.session, [self.output], placed)[self.output].to(images.device)
        seen = {self.input.name: placed}
        session = self._inner_session()
        found = self._run(session, list(dict.fromkeys([*self._nodes, self.output])), placed)
        for output, node in self._nodes.items():
            given, layer = found.get(output), self.get_submodule(self._layers[output])
            if (
                given is not None
                and given.is_floating_point()
                and given.ndim > 1
                and len(given) == len(placed)
            ):
                assert isinstance(layer, OnnxNode)
                layer.given = given
                seen[output] = layer(*(seen[name] for name in node.input if name in seen))
        return found[self.output].to(images.device)

    def _run(self, session: Any, outputs: Sequence[str], placed: Tensor) -> dict[str, Tensor]:
        """Return the numeric outputs of a session by name.

        For a fixed batch size, the last batch is filled up with copies.
        """
        array = np.ascontiguousarray(placed.numpy().astype(_TYPES[self.input.type]))
        size = self.batch_size or len(array)
        parts = []
        for start in range(0, len(array), size):
            part = array[start : start + size]
            filled = np.concatenate([part, np.repeat(part[-1:], size - len(part), axis=0)])
            answers = dict(
                zip(
                    outputs,
                    map(_as_array, session.run(outputs, {self.input.name: filled})),
                    strict=True,
                )
            )
            measured = answers[self.output]
            # The model may remove the batch axis of a single image.
            if size == 1 and (measured.ndim == 0 or len(measured) != 1):
                answers[self.output] = measured[None]
            # Remove the copies that fill the batch up.
            rows = slice(len(part) if len(filled) > len(part) else None)
            parts.append(
                {
                    name: np.atleast_1d(values)[rows]
                    for name, values in answers.items()
                    if values.dtype.kind in "biuf"
                }
            )
        results = {
            name: torch.from_numpy(np.concatenate([part[name] for part in parts]))
            for name in parts[0]
        }
        return {
            name: values.float() if values.dtype == torch.float16 else values
            for name, values in results.items()
        }

    def _inner_session(self) -> Any:
        """Return a session that outputs the first output of every node."""
        if self._inner is None:
            onnx = require("onnx", "layers need", "onnx")
            library = require("onnxruntime", "this model needs", "teka[audit]")
            model = onnx.ModelProto()
            model.CopyFrom(self._graph)
            known = {one.name for one in model.graph.output}
            model.graph.output.extend(
                onnx.ValueInfoProto(name=name) for name in self._nodes if name not in known
            )
            options = library.SessionOptions()
            options.log_severity_level = 3
            self._inner = library.InferenceSession(
                model.SerializeToString(), options, self.session.get_providers()
            )
        return self._inner


def choose_output(outputs: Sequence[Any], name: str | None = None) -> Any:
    """Return the output to measure: by its name, or "logits", or the first numeric output.

    Floating-point outputs come before integers, because classifiers often output the class first.

    Raises:
        ValueError: No output has this name, or none is numeric.
    """
    named = {output.name: output for output in outputs}
    if name is not None:
        if name not in named:
            names = ", ".join(map(repr, named))
            expected = f"one of the file's outputs: {names}{did_you_mean(name, named)}"
            raise wrong_value("output_name", name, expected)
        chosen = [named[name]]
    else:
        chosen = [named["logits"]] if "logits" in named else list(outputs)
    for fits in (
        lambda kind: kind in _FLOATING,
        lambda kind: kind.startswith(_MAPS),
        lambda kind: kind in _WHOLE,
    ):
        for output in chosen:
            if fits(output.type):
                return output
    came = ", ".join(f"{output.name}: {output.type}" for output in chosen)
    raise wrong_value("the outputs of the file", came, "one of floating-point or whole numbers")


def _as_array(answer: Any) -> np.ndarray:
    """Return an output as an array. A list of dictionaries has a column for each class."""
    if isinstance(answer, list):
        return np.array(
            [[shares[key] for key in sorted(shares)] for shares in answer], dtype=np.float32
        )
    return np.asarray(answer)


def _layer_of(node: Any) -> OnnxNode:
    """Return a layer for a node, with torch's attributes if it is a convolution or pooling."""
    attributes = {one.name: list(one.ints) for one in node.attribute}
    kernel = attributes.get("kernel_shape", [])
    kind = f"{node.op_type}2d" if len(kernel) == 2 else node.op_type
    layer = type(kind, (OnnxNode,), {})()
    if len(kernel) == 2:
        pads = attributes.get("pads", [0] * 4)
        layer.kernel_size, layer.stride = tuple(kernel), tuple(attributes.get("strides", [1, 1]))
        layer.padding = tuple(max(pads[axis], pads[axis + 2]) for axis in range(2))
    return layer


def read_graph(file: Path) -> Any:
    """Return the graph of a file, or None if onnx is not installed or the file is too large."""
    try:
        onnx = importlib.import_module("onnx")
        graph = onnx.load(file)
        return graph if graph.ByteSize() < _MOST_BYTES else None
    except EXTERNAL_ERRORS:  # onnx may be missing or refuse a file that onnxruntime accepts
        return None


def load_onnx(path: str | Path, load_options: LoadOptions = DEFAULT_LOAD_OPTIONS) -> LoadedModel:
    """Load an ONNX file with a single input (B, C, H, W) or (B, H, W, C)."""
    file = expand_user(path)
    if not file.is_file():
        raise wrong_value("model", str(path), "an ONNX file; there is none")
    session = _session(
        require("onnxruntime", "this model needs", "teka[audit]"), file, load_options.device
    )
    inputs = session.get_inputs()
    if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].type not in _TYPES:
        came = ", ".join(f"{one.name}: {one.type} {one.shape}" for one in inputs)
        types = "floating-point numbers or uint8"
        raise wrong_value(
            f"the inputs of {path}", came, f"one of images, with four axes of {types}"
        )
    _, *shape = inputs[0].shape
    height, width, channels = (
        shape if _is_channels_last(inputs[0].shape) else (shape[1], shape[2], shape[0])
    )
    in_channels = channels if isinstance(channels, int) else None
    size = (height, width) if isinstance(height, int) and isinstance(width, int) else None
    if load_options.input_size is not None:
        wanted = check_image_size("input_size", load_options.input_size)
        if size not in (None, wanted):
            raise wrong_value(
                "input_size", load_options.input_size, f"{size}, as {path} takes no other"
            )
        size = wanted
    transform = read_processor_file(file.parent, in_channels or 3)
    note = (
        ""
        if transform
        else f"no {PROCESSOR_FILE} is next to the file: the model gets images in [0, 1]"
    )
    is_levels = inputs[0].type == "tensor(uint8)"
    if is_levels:
        note = "" if transform else "images go in as levels from 0 to 255, as the file takes uint8"
    if transform is None:
        transform = Preprocessing(in_channels, size)
    elif size is not None and size != transform.crop:
        transform, _ = transform.resized_to(size)
    transform, _ = replace(load_options, input_size=None).fit(transform)
    if is_levels:
        num_channels = in_channels or 3
        if transform.normalization not in (
            None,
            Normalize((0.0,) * num_channels, (1 / _LEVELS,) * num_channels),
        ):
            expected = f"none, because {path} takes uint8 and normalizes its images itself"
            raise wrong_value("the mean and deviation", transform.normalization, expected)
        transform = replace(transform, normalization=None)
    config = file.parent / "config.json"
    names = read_class_names(read_json(config).get("id2label") if config.is_file() else None)
    graph = read_graph(file)
    function = OnnxFunction(session, transform, graph, load_options.output_name)
    if graph is None:
        note = "; ".join(
            filter(None, [note, "its nodes are not looked into, which needs the library onnx"])
        )
    outputs = session.get_outputs()
    if len(outputs) > 1 and load_options.output_name is None:
        others = ", ".join(repr(one.name) for one in outputs if one.name != function.output)
        note = "; ".join(
            filter(None, [note, f"its output {function.output!r} is measured, not {others}"])
        )
    num_classes = _num_classes(next(one for one in outputs if one.name == function.output))
    return LoadedModel(
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


def _num_classes(output: Any) -> int | None:
    """Return the number of classes of an output (B, K) or (B, K, 1, 1), or None if unknown."""
    if output.type not in _FLOATING or len(output.shape) < 2:
        return None
    sizes = [size for size in output.shape[1:] if size != 1]
    if len(sizes) > 1 or not all(isinstance(size, int) for size in sizes):
        return None
    return num_classes_of(sizes[0] if sizes else 1)


def _session(library: Any, file: Path, device: torch.device | str | None) -> Any:
    kind = "cpu" if device is None else torch.device(device).type
    provider = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}.get(kind)
    if provider not in library.get_available_providers():
        raise wrong_value(
            "device", str(device), f"one that onnxruntime has: {library.get_available_providers()}"
        )
    options = library.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors, which are raised as well
    with read_as(str(file), "an ONNX file that onnxruntime can run"):
        return library.InferenceSession(str(file), options, providers=[provider])


def _is_channels_last(shape: Sequence[object]) -> bool:
    return shape[3] in _CHANNELS and shape[1] not in _CHANNELS


def _hash(file: Path) -> str:
    """Return the SHA-256 of a file and of its weight files, such as model.onnx.data."""
    beside = (
        other
        for other in file.parent.iterdir()
        if other.name.startswith((f"{file.name}.", f"{file.name}_"))
    )
    digest = hashlib.sha256()
    for one in (file, *sorted(other for other in beside if other.is_file())):
        with one.open("rb") as opened:
            while block := opened.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
