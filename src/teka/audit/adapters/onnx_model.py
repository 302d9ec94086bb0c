"""Loader of ONNX files, which are run with onnxruntime."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from teka.audit.adapters.loaded_model import (
    DEFAULT_LOAD_OPTIONS,
    LoadedModel,
    LoadOptions,
    read_class_names,
    safe_loading,
)
from teka.audit.adapters.preprocessing import Images, Preprocessing
from teka.audit.adapters.programs import read_input_shape, run_in_batches
from teka.audit.adapters.transformers_model import load_preprocessing
from teka.audit.model_output import ModelError, num_classes_of
from teka.errors import EXTERNAL_ERRORS, error_message, require, unknown_name_error, wrong_value
from teka.files import expand_user, read_json

_INPUT_TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(uint8)": np.uint8,  # from 0 to 255
}
_FLOATING = ("tensor(float)", "tensor(float16)", "tensor(double)")
_OUTPUT_TYPES = (*_FLOATING, "tensor(int64)", "tensor(int32)", "tensor(bool)")
_CHANNELS = (1, 3)
_MAX_BYTES = 2**31 - 2**20  # largest graph that can be passed in memory


class OnnxNode(nn.Module):
    """Module that stands for a node of an ONNX graph, so that forward hooks can observe the node.

    The module computes nothing. It returns the value that onnxruntime computed for the node.

    Args:
        inputs: Names of the inputs of the node.
    """

    values: Tensor

    def __init__(self, inputs: Sequence[str]) -> None:
        super().__init__()
        self.inputs = tuple(inputs)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the first output of the node."""
        return self.values


class OnnxModule(nn.Module):
    """PyTorch module that runs an ONNX model on images in [0, 1].

    If the graph is known, the module has a submodule for each node, named after the node or its
    output. As soon as one of them has a forward hook, a second session computes the outputs of all
    nodes, and the submodules are called in the order of execution to pass these outputs to hooks.

    Args:
        session: Session of onnxruntime.
        transform: Preprocessing of the model.
        graph: Content of the ONNX file, or None if it is not known.
        output: Name of the output to measure.
    """

    def __init__(self, session: Any, transform: Preprocessing, graph: Any, output: str) -> None:
        super().__init__()
        self.session = session
        self.transform = transform
        self._graph = graph
        (self.input,) = session.get_inputs()
        self.output = output
        self.batch_size, _, self._size = read_input_shape(self.input.shape)
        self._layers: dict[str, OnnxNode] = {}  # by their outputs
        if graph is not None:
            for node in graph.graph.node:
                if node.output and node.output[0]:  # an omitted output has no name
                    layer = self._layers[node.output[0]] = _make_node_layer(node)
                    self.add_module(self._unused_name(node.name or node.output[0]), layer)
            for tensor in graph.graph.initializer:
                if len(tensor.dims) in (3, 4) and tensor.dims[0] == 1:  # may hold positions
                    self.register_buffer(self._unused_name(tensor.name), torch.zeros(*tensor.dims))
        self.eval()

    def _unused_name(self, name: str) -> str:
        name = name.replace(".", "_")
        while hasattr(self, name):
            name += "_"
        return name

    def __deepcopy__(self, memo: object) -> "OnnxModule":
        raise TypeError("onnxruntime cannot change the precision of an ONNX file")

    def forward(self, images: Images) -> Tensor:
        """Normalize images in [0, 1], run the ONNX model, and return the output to measure."""
        normalized = self.transform.normalize(images.detach().to("cpu", torch.float32))
        if self.input.type == "tensor(uint8)":
            normalized = (normalized * 255).round().clamp(0, 255)
        if _is_channels_last(self.input.shape):
            normalized = normalized.permute(0, 2, 3, 1)
        has_hooks = any(layer._forward_hooks for layer in self.children())
        layers = self._layers if has_hooks else {}
        session = self._layer_session if has_hooks else self.session
        results = self._run_session(
            session, list(dict.fromkeys([*layers, self.output])), normalized
        )
        seen = {self.input.name: normalized}
        for name, layer in layers.items():
            values = results.get(name)
            if values is not None and values.is_floating_point() and len(values) == len(normalized):
                layer.values = values
                seen[name] = layer(*(seen[other] for other in layer.inputs if other in seen))
        return results[self.output].to(images.device)

    def _run_session(self, session: Any, names: list[str], normalized: Tensor) -> dict[str, Tensor]:
        """Run an onnxruntime session on normalized images, and return its numeric outputs by name.

        Raises:
            ModelError: The session raised an error, and the file does not say which sizes it takes.
        """

        def run_batch(batch: Tensor) -> dict[str, Tensor]:
            array = np.ascontiguousarray(batch.numpy().astype(_INPUT_TYPES[self.input.type]))
            try:
                outputs = session.run(names, {self.input.name: array})
            except EXTERNAL_ERRORS as error:
                if self._size is not None:
                    raise
                shape = tuple(batch.shape[1:])
                raise ModelError(
                    f"the model cannot be run on images of shape {shape}. The file does not say "
                    "which sizes the model accepts. Choose the size of its training with "
                    "--input-size, for example 224, or [48,320] for a height of 48 and a width of "
                    f"320. onnxruntime raised: {error_message(error)}"
                ) from error
            tensors = {}
            for name, values in zip(names, outputs, strict=True):
                if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
                    tensor = torch.from_numpy(np.atleast_1d(values))
                    tensors[name] = tensor.float() if tensor.dtype == torch.float16 else tensor
            # The model may remove the batch axis of a single image.
            measured = tensors[self.output]
            if len(batch) == 1 != len(measured):
                tensors[self.output] = measured[None]
            return tensors

        return run_in_batches(run_batch, normalized, self.batch_size)

    @cached_property
    def _layer_session(self) -> Any:
        """Session that returns the first output of every node."""
        onnx = _require("onnx")
        model = onnx.ModelProto()
        model.CopyFrom(self._graph)
        known = {output.name for output in model.graph.output}
        model.graph.output.extend(
            onnx.ValueInfoProto(name=name) for name in self._layers if name not in known
        )
        return _make_session(model.SerializeToString(), self.session.get_providers())


def choose_output(outputs: Sequence[Any], name: str | None) -> Any:
    """Choose the output of an ONNX model to measure.

    By default, it is the output "logits". If there is none, it is the first floating-point output,
    or else the first integer output, which is often the predicted class.

    Args:
        outputs: Descriptions of all outputs, from onnxruntime.
        name: Name of the output, or None for the default.

    Raises:
        ValueError: No numeric output has this name.
    """
    numeric = [output for output in outputs if output.type in _OUTPUT_TYPES]
    numeric.sort(key=lambda output: output.type not in _FLOATING)
    by_name = {output.name: output for output in numeric}
    if name is None:
        name = "logits" if "logits" in by_name else next(iter(by_name), "")
    if name not in by_name:
        hint = "Other outputs of the file are not numeric."
        raise unknown_name_error("output_name", name, by_name, hint)
    return by_name[name]


def _make_node_layer(node: Any) -> OnnxNode:
    """Create the module for a node of an ONNX graph, with the type of the node as its class name.

    The module of a convolution or pooling also has its kernel size, stride and padding.
    """
    attributes = {attribute.name: list(attribute.ints) for attribute in node.attribute}
    kernel = attributes.get("kernel_shape", [])
    kind = f"{node.op_type}2d" if len(kernel) == 2 else node.op_type
    layer = type(kind, (OnnxNode,), {})(node.input)
    if len(kernel) == 2:
        top, left, bottom, right = attributes.get("pads") or [0] * 4
        layer.kernel_size = tuple(kernel)
        layer.stride = tuple(attributes.get("strides", [1, 1]))
        layer.padding = max(top, bottom), max(left, right)
    return layer


def load_onnx(path: str | Path, load_options: LoadOptions = DEFAULT_LOAD_OPTIONS) -> LoadedModel:
    """Load an ONNX file with a single input (B, C, H, W) or (B, H, W, C)."""
    file = expand_user(path)
    provider = f"{torch.device(load_options.device or 'cpu').type.upper()}ExecutionProvider"
    providers = _require("onnxruntime").get_available_providers()
    if provider not in providers:
        expected = f"one that onnxruntime has: {providers}"
        raise wrong_value("device", str(load_options.device), expected)
    with safe_loading(str(file), "an ONNX file that onnxruntime can run"):
        session = _make_session(str(file), [provider])
    inputs = session.get_inputs()
    if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].type not in _INPUT_TYPES:
        given = ", ".join(f"{each.name}: {each.type} {each.shape}" for each in inputs)
        expected = "a single input of images with four axes, as floating-point numbers or uint8"
        raise wrong_value(f"the inputs of {path}", given, expected)
    graph = _read_graph(file)
    transform, is_declared = _choose_preprocessing(inputs[0], graph, file, load_options)
    config = file.parent / "config.json"
    names = read_class_names(read_json(config).get("id2label")) if config.is_file() else None
    notes = []
    if graph is None:
        notes.append(
            "its layers are not examined, because this requires onnx and a file below 2 GB"
        )
    outputs = session.get_outputs()
    measured = choose_output(outputs, load_options.output_name)
    if len(outputs) > 1 and load_options.output_name is None:
        others = ", ".join(repr(output.name) for output in outputs if output is not measured)
        notes.append(f"its output {measured.name!r} is measured, not {others}")
    num_classes = _num_classes_of_output(measured)
    return LoadedModel(
        name=file.stem,
        kind="onnx",
        function=OnnxModule(session, transform, graph, measured.name),
        class_names=names if num_classes in (None, len(names or ())) else None,
        num_classes=num_classes,
        transform=transform,
        weights_hash=_hash_files(file),
        note="; ".join(notes),
        declares_preprocessing=is_declared,
    )


def _choose_preprocessing(
    image_input: Any, graph: Any, file: Path, load_options: LoadOptions
) -> tuple[Preprocessing, bool]:
    """Choose the preprocessing for an ONNX file, and determine if its normalization is known.

    The preprocessing comes from an image processor next to the file, from the shape of the input,
    and from the options of the user.
    """
    shape = image_input.shape
    if _is_channels_last(shape):
        shape = [shape[0], shape[3], *shape[1:3]]
    _, channels, size = read_input_shape(shape)
    if channels is None and graph is not None:
        first = [node.input[1] for node in graph.graph.node if node.op_type == "Conv"][:1]
        weights = (each for each in graph.graph.initializer if each.name in first)
        channels = next((each.dims[1] for each in weights if each.dims[1] in _CHANNELS), None)
    own = load_preprocessing(str(file.parent), channels or 3)
    transform = own or Preprocessing(channels, size)
    if size is not None and size != transform.output_size:
        transform = transform.resized_to(size)
    transform = load_options.adapt_preprocessing(transform)
    if size is not None and size != transform.output_size:
        expected = f"{size}, the only size that {file.name} accepts"
        raise wrong_value("input_size", load_options.input_size, expected)
    if image_input.type != "tensor(uint8)":
        return transform, own is not None or load_options.mean is not None
    if load_options.mean is not None:
        expected = f"None, because {file.name} takes uint8 and normalizes its images itself"
        raise wrong_value("mean", load_options.mean, expected)
    return replace(transform, normalization=None), True


def _num_classes_of_output(output: Any) -> int | None:
    """Return the number of classes of an output (B, K) or (B, K, 1, 1), or None if unknown."""
    sizes = [size for size in output.shape[1:] if size != 1] or [1]
    is_vector = output.type in _FLOATING and len(output.shape) > 1 and len(sizes) == 1
    return num_classes_of(sizes[0]) if is_vector and isinstance(sizes[0], int) else None


def _require(name: str) -> Any:
    return require(name, "this model needs", "teka[audit]")


def _read_graph(file: Path) -> Any:
    """Return the content of an ONNX file.

    The result is None if the file is too large, or if onnx is not installed or cannot read it.
    """
    try:
        graph = _require("onnx").load(file)
        return graph if graph.ByteSize() < _MAX_BYTES else None
    except EXTERNAL_ERRORS:
        return None


def _make_session(model: str | bytes, providers: Sequence[str]) -> Any:
    """Create an onnxruntime session for a model, given as the path or the content of a file."""
    library = _require("onnxruntime")
    options = library.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # errors are raised as exceptions
    return library.InferenceSession(model, options, providers=providers)


def _is_channels_last(shape: Sequence[object]) -> bool:
    return shape[3] in _CHANNELS and shape[1] not in _CHANNELS


def _hash_files(file: Path) -> str:
    """Return the SHA-256 of an ONNX file and its weight files, such as model.onnx.data."""
    digest = hashlib.sha256()
    for path in sorted(file.parent.iterdir()):
        if path.is_file() and path.name.startswith(file.name):
            digest.update(path.read_bytes())
    return digest.hexdigest()
