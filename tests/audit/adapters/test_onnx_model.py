import hashlib
import json
import sys

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from teka.audit import AuditSettings, Movement, audit, locate_layers, square_shifts
from teka.audit.adapters import LoadOptions, load
from teka.audit.adapters.onnx_model import OnnxModule, load_onnx
from teka.audit.measure.measure_responses import measure_responses
from tests.audit.measure.models import not_none


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3, stride=2), nn.Linear(4, 5)

    def forward(self, images):
        return self.head(self.conv(images).relu().mean(dim=(2, 3)))


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def exported(net, tmp_path_factory):
    """Return the folder of a network exported for any batch size, with weights in a second file."""
    folder = tmp_path_factory.mktemp("exported")
    torch.onnx.export(
        net,
        (torch.rand(2, 3, 11, 13),),
        folder / "net.onnx",
        input_names=["images"],
        output_names=["logits"],
        dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
        external_data=True,
        dynamo=True,
        verbose=False,
    )
    return folder


def write_net(folder, path, batch: int | None = None) -> None:
    """Write the exported network as one file, for one batch size if it is given."""
    model = onnx.load(folder / "net.onnx")
    if batch is not None:
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = batch
    onnx.save(model, path)


def test_onnx_file_returns_the_output_of_the_module(net, exported, tmp_path):
    images = torch.rand(7, 3, 11, 13)
    for batch in (None, 1, 4):
        write_net(exported, tmp_path / "net.onnx", batch)
        subject = load_onnx(tmp_path / "net.onnx")
        assert isinstance(subject.function, OnnxModule)
        assert subject.function.batch_size == batch
        assert (subject.name, subject.input_size, subject.in_channels, subject.num_classes) == (
            "net",
            (11, 13),
            3,
            5,
        )
        with torch.inference_mode():
            answer = subject.function(images)
            assert isinstance(answer, torch.Tensor)
            torch.testing.assert_close(answer, net(images), atol=1e-5, rtol=1e-5)
            assert not answer.requires_grad
        assert not subject.declares_preprocessing


def test_configs_next_to_the_file_are_read(net, exported, tmp_path):
    write_net(exported, tmp_path / "net.onnx")
    settings = {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": 13},
        "do_center_crop": True,
        "crop_size": {"height": 11, "width": 13},
    }
    normal = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**settings, **normal}))
    (tmp_path / "config.json").write_text(
        json.dumps({"id2label": {str(k): name for k, name in enumerate("abcde")}})
    )
    subject = load_onnx(tmp_path / "net.onnx")
    assert subject.class_names == ("a", "b", "c", "d", "e")
    assert subject.declares_preprocessing
    assert (subject.note, subject.transform.crop, subject.transform.resize) == ("", (11, 13), 13)
    images = torch.rand(2, 3, 11, 13)
    mean, deviation = (torch.tensor(values)[:, None, None] for values in normal.values())
    with torch.inference_mode():
        torch.testing.assert_close(
            subject.function(images), net((images - mean) / deviation), atol=1e-5, rtol=1e-5
        )


def test_weights_hash_includes_external_weights(exported):
    files = sorted(exported.iterdir())
    assert [file.name for file in files] == ["net.onnx", "net.onnx.data"]
    content = b"".join(file.read_bytes() for file in files)
    assert load_onnx(files[0]).weights_hash == hashlib.sha256(content).hexdigest()


def write_flatten_model(path, shape: list, kind: int = TensorProto.FLOAT, inputs: int = 1) -> None:
    """Write a model that adds its inputs of a shape and flattens the sum."""
    names = [f"x{number}" for number in range(inputs)]
    nodes = [helper.make_node("Sum", names, ["sum"]), helper.make_node("Flatten", ["sum"], ["out"])]
    given = [helper.make_tensor_value_info(name, kind, shape) for name in names]
    answer = [helper.make_tensor_value_info("out", kind, [shape[0], None])]
    graph = helper.make_graph(nodes, "flat", given, answer)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
    )


def test_channels_last_and_half_precision_are_supported(tmp_path):
    write_flatten_model(tmp_path / "last.onnx", ["n", 2, 5, 3], TensorProto.FLOAT16)
    subject = load_onnx(tmp_path / "last.onnx")
    assert (subject.input_size, subject.in_channels) == ((2, 5), 3)
    images = torch.rand(3, 3, 2, 5)
    expected = images.permute(0, 2, 3, 1).flatten(1)
    torch.testing.assert_close(subject.function(images), expected, atol=1e-3, rtol=0)


def test_dynamic_input_size_can_be_set(tmp_path):
    write_flatten_model(tmp_path / "open.onnx", ["n", 1, "h", "w"])
    assert load_onnx(tmp_path / "open.onnx").input_size is None
    subject = load_onnx(tmp_path / "open.onnx", LoadOptions(input_size=(3, 4)))
    assert (subject.input_size, subject.transform.resize) == ((3, 4), (3, 4))
    write_flatten_model(tmp_path / "fixed.onnx", ["n", 1, 3, 4])
    with pytest.raises(ValueError, match=r"input_size must be .*got 7"):
        load_onnx(tmp_path / "fixed.onnx", LoadOptions(input_size=7))


def test_unsupported_files_are_errors(tmp_path):
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    write_flatten_model(tmp_path / "two.onnx", ["n", 1, 3, 4], inputs=2)
    write_flatten_model(tmp_path / "flat.onnx", ["n", 12])
    write_flatten_model(tmp_path / "whole.onnx", ["n", 1, 3, 4], TensorProto.DOUBLE)
    for name, message in (
        ("broken", "that onnxruntime can run"),
        ("two", "a single input of images"),
        ("flat", "a single input of images"),
        ("absent", "that onnxruntime can run"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            load_onnx(tmp_path / f"{name}.onnx")
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="onnxruntime has"):
        load_onnx(tmp_path / "whole.onnx", LoadOptions(device="meta"))


class ShiftSensitive(nn.Module):
    """Network with a stride, zero padding and position embeddings, which break equivariance."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 1)
        self.strided = nn.Conv2d(4, 6, 2, stride=2)
        self.padded = nn.Conv2d(6, 6, 3, padding=1)
        self.pos_embed = nn.Parameter(torch.randn(1, 6, 12, 12))

    def forward(self, images):
        cells = self.padded(self.strided(self.first(images).relu()).relu())
        return (cells + self.pos_embed).relu().mean(dim=(2, 3))


def test_layers_of_an_onnx_file_break_like_those_of_the_module(tmp_path):
    torch.manual_seed(0)
    model, images = ShiftSensitive().eval(), torch.rand(8, 1, 24, 24)
    shapes = {"images": {0: torch.export.Dim("batch")}}
    torch.onnx.export(
        model,
        (images,),
        tmp_path / "net.onnx",
        dynamic_shapes=shapes,
        dynamo=True,
        verbose=False,
        optimize=False,
    )
    function = load_onnx(tmp_path / "net.onnx").function
    assert isinstance(function, OnnxModule)
    plain = function(images)
    movement, shifts = Movement("circular"), square_shifts(2)
    found, expected = (locate_layers(one, images, shifts, movement) for one in (function, model))
    kinds = {kind: one.module for kind, one in found.breaks.items()}
    assert kinds == {"aliasing": "Conv2d", "edge": "Conv2d", "interior": "Add"}
    for kind, one in expected.breaks.items():
        assert found.breaks[kind].error == pytest.approx(one.error, rel=1e-3), kind
    (embedding,) = found.absolute_embeddings  # PyTorch 2.6 names it "model_pos_embed".
    assert embedding.endswith("pos_embed")
    torch.testing.assert_close(function(images), plain)
    report = audit(
        function,
        images,
        settings=AuditSettings(shifts=[(0, 1), (0, 2)], num_examples=0, num_resamples=40),
    )
    assert report.failures == ()
    assert report.layers is not None
    assert report.layers.breaks["interior"].module == "Add"


def test_audit_without_the_onnx_package_has_no_layers(exported, tmp_path, monkeypatch):
    write_net(exported, tmp_path / "net.onnx")
    monkeypatch.setitem(sys.modules, "onnx", None)
    subject = load_onnx(tmp_path / "net.onnx")
    assert "because this requires onnx" in subject.note
    answer = subject.function(torch.rand(2, 3, 11, 13))
    assert isinstance(answer, torch.Tensor)
    assert answer.shape == (2, 5)


WEIGHTS = torch.randn(5, 3, 3, 3, generator=torch.Generator().manual_seed(0))
NAMES = (
    "output",
    "forward",
    "type",
    "training",
    "session",
    "_modules",
    "0",
    "a.b",
    "a_b",
    "relu (call 2)",
    "x/y z",
)


def write_head(
    path,
    *nodes,
    shape=("n", 3, 8, 8),
    outputs=("output",),
    before=(),
    kind=TensorProto.FLOAT,
    names=("", ""),
):
    """Write a file with a convolution, its mean over positions ("mean") and additional nodes."""
    image = before[-1].output[0] if before else "input"
    conv = helper.make_node("Conv", [image, "w"], ["maps"], name=names[0])
    mean = helper.make_node("GlobalAveragePool", ["maps"], ["mean"], name=names[1])
    given = [helper.make_tensor_value_info("input", kind, shape)]
    named = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        for name in outputs
        if isinstance(name, str)
    }
    graph = helper.make_graph(
        [*before, conv, mean, *nodes],
        "head",
        given,
        [named[output] if isinstance(output, str) else output for output in outputs],
        [numpy_helper.from_array(WEIGHTS.numpy(), "w")],
    )
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


def expected_logits(images):
    return nn.functional.conv2d(images, WEIGHTS).mean((2, 3))


def flatten(name="output"):
    return helper.make_node("Flatten", ["mean"], [name])


@pytest.mark.parametrize("name", NAMES)
def test_nodes_and_outputs_may_have_any_name(name, tmp_path):
    other = "a.b" if name == "a_b" else "eval"
    write_head(tmp_path / "net.onnx", flatten(name), outputs=(name,), names=(name, other))
    subject, images = load_onnx(tmp_path / "net.onnx"), torch.rand(4, 3, 8, 8)
    torch.testing.assert_close(
        subject.function(images), expected_logits(images), atol=1e-5, rtol=1e-5
    )
    settings = AuditSettings(shifts=[(0, 1)], parts=("layers",), num_examples=0, num_resamples=40)
    report = audit(subject.function, images, settings=settings)
    assert report.failures == ()
    assert report.layers is not None
    assert len({one.name for one in report.layers.findings}) == len(report.layers.findings) >= 2


@pytest.mark.parametrize("batch", ["n", 1])
@pytest.mark.parametrize("squeezed", [False, True])
def test_fixed_batch_and_axes_of_size_one_are_supported(batch, squeezed, tmp_path):
    nodes = [helper.make_node("Squeeze", ["mean"], ["output"])] if squeezed else []
    write_head(
        tmp_path / "net.onnx",
        *nodes,
        shape=(batch, 3, 8, 8),
        outputs=("output" if squeezed else "mean",),
    )
    function, images = load_onnx(tmp_path / "net.onnx").function, torch.rand(3, 3, 8, 8)
    for batch_size in (1, 2):
        given = function, images, [(0, 0)], Movement("circular")
        responses = measure_responses(*given, labels=torch.tensor([0, 1, 2]), batch_size=batch_size)
        assert responses.output == "logits"
        assert torch.equal(not_none(responses.predictions)[0], expected_logits(images).argmax(1))


def test_default_output_is_the_first_of_floating_point(tmp_path):
    label = helper.make_tensor_value_info("label", TensorProto.INT64, ["n"])
    nodes = [
        flatten("scores"),
        helper.make_node("ArgMax", ["scores"], ["label"], axis=1, keepdims=0),
    ]
    nodes.append(helper.make_node("Softmax", ["scores"], ["shares"], axis=1))
    write_head(tmp_path / "a.onnx", *nodes, outputs=(label, "shares"))
    images = torch.rand(3, 3, 8, 8)
    shares = expected_logits(images).softmax(1)
    subject = load_onnx(tmp_path / "a.onnx")
    torch.testing.assert_close(subject.function(images), shares, atol=1e-5, rtol=1e-5)
    assert "its output 'shares' is measured, not 'label'" in subject.note
    chosen = load(str(tmp_path / "a.onnx"), LoadOptions(output_name="label")).function(images)
    assert torch.equal(torch.as_tensor(chosen), shares.argmax(1))
    with pytest.raises(
        ValueError, match=r"output_name must be one of .*got 'share'.*Did you mean 'shares'"
    ):
        load_onnx(tmp_path / "a.onnx", LoadOptions(output_name="share"))


def test_undeclared_input_size_is_named_if_the_model_cannot_be_run(tmp_path):
    sizes = numpy_helper.from_array(np.array([0, 3, 64]), "sizes")
    nodes = [
        helper.make_node("Constant", [], ["sizes"], value=sizes),
        helper.make_node("Reshape", ["input", "sizes"], ["output"]),
    ]
    for shape in (("n", 3, "height", "width"), ("n", 3, 8, 9)):
        write_head(tmp_path / "net.onnx", *nodes, shape=shape)
        function = load_onnx(tmp_path / "net.onnx").function
        with pytest.raises(ValueError, match="Reshape") as error:
            audit(function, torch.rand(2, 3, 8, 9), settings=AuditSettings(shifts=[(0, 1)]))
        start = "the model cannot be run on images of shape (3, 8, 9). The file does not say"
        assert str(error.value).startswith(start) == (shape[2] != 8)
        assert ("--input-size" in str(error.value)) == (shape[2] != 8)
    write_head(tmp_path / "net.onnx", *nodes, shape=("n", 3, "height", "width"))
    output = load_onnx(tmp_path / "net.onnx").function(torch.rand(2, 3, 8, 8))
    assert torch.as_tensor(output).shape == (2, 3, 64)


def test_undeclared_channels_are_those_of_the_first_convolution(tmp_path):
    write_head(tmp_path / "net.onnx", flatten(), shape=("n", "channels", "height", "width"))
    subject = load_onnx(tmp_path / "net.onnx")
    assert subject.in_channels == 3
    gray = subject.transform.resize_images(torch.rand(2, 1, 8, 8))
    torch.testing.assert_close(subject.function(gray), expected_logits(gray))


@pytest.mark.parametrize("is_last", [False, True])
def test_uint8_model_gets_integer_levels(is_last, tmp_path):
    nodes = [helper.make_node("Cast", ["input"], ["levels"], to=TensorProto.FLOAT)]
    if is_last:
        nodes = [helper.make_node("Transpose", ["input"], ["first"], perm=[0, 3, 1, 2])]
        nodes.append(helper.make_node("Cast", ["first"], ["levels"], to=TensorProto.FLOAT))
    shape = ("n", "h", "w", 3) if is_last else ("n", 3, 8, 8)
    path = tmp_path / "net.onnx"
    output = helper.make_tensor_value_info("mean", TensorProto.FLOAT, ["n", 5, 1, 1])
    write_head(path, shape=shape, outputs=(output,), before=nodes, kind=TensorProto.UINT8)
    subject, images = load_onnx(path), torch.rand(2, 3, 8, 8)
    assert (subject.in_channels, subject.num_classes) == (3, 5)
    expected = expected_logits((255 * images).round())
    torch.testing.assert_close(
        torch.as_tensor(subject.function(images)).flatten(1), expected, atol=1e-3, rtol=1e-5
    )
    with pytest.raises(ValueError, match="takes uint8 and normalizes its images itself"):
        load_onnx(path, LoadOptions(mean=(0.5,), deviation=(0.5,)))


def test_weights_may_be_inputs_and_missing_weights_are_an_error(tmp_path):
    path = tmp_path / "net.onnx"
    write_head(path, flatten())
    model = onnx.load(path)
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, WEIGHTS.shape))
    onnx.save(model, path)
    images = torch.rand(2, 3, 8, 8)
    torch.testing.assert_close(
        load_onnx(path).function(images), expected_logits(images), atol=1e-5, rtol=1e-5
    )
    onnx.save(model, path, save_as_external_data=True, location="net.data", size_threshold=0)
    (tmp_path / "net.data").unlink()
    with pytest.raises(ValueError, match="that onnxruntime can run") as caught:
        load_onnx(path)
    assert "\n" not in str(caught.value)
