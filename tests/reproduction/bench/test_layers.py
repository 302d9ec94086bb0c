import sys
import warnings
from types import ModuleType
from typing import Any

import pytest
import torch

from reproduction.bench.layers import (
    ALL_LAYERS,
    BASELINE,
    FLASH,
    FLASH_TWO_SIDED,
    LAYERS,
    FourGemms,
    FusedSoftmax,
    PerformerPytorch,
    Settings,
    Step,
    layer_names,
)
from teka import Grid
from teka.nn import Attention

DECOUPLED = "flash_bla.ops.linear_attn.decoupled"


def test_every_layer_has_a_name_and_backend_of_its_own_and_the_baseline_is_first():
    places = [(layer.name, layer.backend) for layer in LAYERS]
    assert len(set(places)) == len(places)
    assert LAYERS[0].name == BASELINE
    assert len(layer_names()) == len(set(layer_names())) == len(LAYERS) - 1


def test_all_that_was_asked_for_is_there():
    assert {(layer.name, layer.backend) for layer in LAYERS} >= {
        ("squared_relu-fourier", "linear"),
        ("squared_relu-rotary", "linear"),
        ("squared_relu-causal", "linear"),
        ("constant-quadratic", "toeplitz"),
        ("constant-generalized_quadratic", "fft"),
        ("taylor2", "linear"),
    }


def test_grids_are_squares_and_a_causal_layer_has_a_sequence_of_the_same_length():
    for layer in LAYERS:
        assert layer.grid(49) == (Grid(49) if layer.name.endswith("causal") else Grid((7, 7)))


def test_a_causal_layer_is_causal():
    torch.manual_seed(0)
    module = next(layer for layer in LAYERS if layer.name.endswith("causal")).make(12, 2)
    tokens = torch.randn(2, 36, 12)
    later = torch.cat([tokens[:, :20], torch.randn(2, 16, 12)], dim=1)
    assert torch.equal(module(tokens, Grid(36))[:, :20], module(later, Grid(36))[:, :20])


def test_a_step_of_every_layer_gives_a_gradient_to_the_tokens_and_all_parameters():
    torch.manual_seed(0)
    for layer in LAYERS:
        module = layer.make(12, 2)
        tokens = torch.randn(2, 36, 12, requires_grad=True)
        assert module(tokens, layer.grid(36)).shape == tokens.shape, layer
        step = Step(module, tokens, layer.grid(36))
        step()
        assert all(
            one.grad is not None and one.grad.any() for one in (tokens, *module.parameters())
        ), layer
        step.clear()
        assert all(tensor.grad is None for tensor in (tokens, *module.parameters())), layer


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_every_layer_computes_its_output_in_the_precision_asked_for_and_gradients_in_float32(
    precision: str,
):
    torch.manual_seed(0)
    dtype = getattr(torch, precision)
    for layer in LAYERS:
        module, tokens = layer.make(12, 2), torch.randn(2, 36, 12, requires_grad=True)
        step = Step(module, tokens, layer.grid(36), precision=precision)
        found, exact = step.output(tokens), module(tokens, layer.grid(36))
        assert (found.dtype, exact.dtype) == (dtype, torch.float32), layer
        error = (found.detach().double() - exact.double()).norm() / exact.norm()
        assert error < 4 * torch.finfo(dtype).eps, layer
        step()
        assert all(
            one.grad is not None and one.grad.dtype == torch.float32
            for one in (tokens, *module.parameters())
        )


def test_gradients_are_computed_outside_of_autocast_and_none_of_it_is_left():
    seen: list[bool] = []
    module, tokens = FourGemms(12, 2), torch.randn(2, 36, 12, requires_grad=True)
    tokens.register_hook(lambda gradient: seen.append(torch.is_autocast_enabled("cpu")))
    module.register_forward_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    Step(module, tokens, Grid(36), precision="bfloat16")()
    Step(module, tokens, Grid(36))()
    Step(module, tokens, Grid(36), "forward", "bfloat16")()
    assert seen == [True, False, False, False, True]
    assert not torch.is_autocast_enabled("cpu")


def test_every_layer_has_the_four_projections_of_the_baseline():
    for layer in LAYERS[1:]:
        module = layer.make(12, 2)
        weights = [part.weight for part in module.modules() if isinstance(part, torch.nn.Linear)]
        weights += [
            one for name, one in module.named_parameters() if name.endswith("in_proj_weight")
        ]
        assert all(weight.shape[1] == 12 for weight in weights), layer
        # Heads that attend by position alone have no keys, and no queries unless their position looks at them.
        missing = 6 if "clipped" in layer.name else 24 if layer.name.startswith("constant") else 0
        assert sum(weight.shape[0] for weight in weights) == 4 * 12 - missing, layer


def test_the_fused_peer_computes_what_the_softmax_layer_does():
    fused, plain = (
        FusedSoftmax(12, 3).double(),
        Attention(12, 3, kernel="softmax", relative=None).double(),
    )
    plain.load_state_dict(
        {name: value for name, value in fused.state_dict().items() if name != "key.bias"}
    )
    tokens = torch.randn(2, 35, 12, dtype=torch.float64)
    assert torch.allclose(fused(tokens, Grid((35,))), plain(tokens), atol=1e-12)


@pytest.mark.parametrize("name", [FLASH, FLASH_TWO_SIDED])
def test_a_peer_of_a_gpu_gets_its_heads_and_gives_them_to_the_output(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    """With others in place of the kernels, which give the values back: no GPU is needed for what is around them."""
    shapes: list[tuple[int, ...]] = []

    def kernels(*tensors: torch.Tensor) -> Any:
        shapes.extend(tuple(one.shape) for one in tensors)
        return (tensors[-1], None) if name == FLASH else tensors[-1]

    for package, attribute in (
        ("fla.ops.linear_attn", "chunk_linear_attn"),
        (DECOUPLED, "decoupled_la"),
    ):
        module = ModuleType(package)
        setattr(module, attribute, kernels)
        monkeypatch.setitem(sys.modules, package, module)
    (layer,) = (layer for layer in ALL_LAYERS if layer.name == name)
    made, tokens = layer.make(12, 2), torch.randn(3, 16, 12)
    assert isinstance(made, FourGemms)
    assert torch.allclose(made(tokens, layer.grid(16)), made.output(made.value(tokens)))
    assert set(shapes) == {(3, 16, 2, 6) if name == FLASH else (3, 2, 16, 6)}
    assert layer not in Settings(**GOOD).chosen_layers()


def test_importing_the_performer_peer_warns_of_nothing(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "performer_pytorch"]:
        monkeypatch.delitem(sys.modules, name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PerformerPytorch(8, 2)


def test_a_missing_performer_is_an_error_that_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "performer_pytorch", None)
    with pytest.raises(ImportError, match=r"pip install teka\[bench\]"):
        PerformerPytorch(8, 2)


GOOD: dict[str, Any] = {
    "lengths": (9, 4),
    "direction": "forward_backward",
    "precision": "float32",
    "dim": 8,
    "heads": 2,
    "batch": 1,
    "repeats": 1,
    "warmup": 0,
    "threads": 1,
    "layers": None,
    "device": "cpu",
    "max_bytes": 1e9,
    "max_seconds": 20.0,
    "budget_seconds": 900.0,
}


def test_lengths_are_sorted_and_no_choice_is_all_layers():
    settings = Settings(**GOOD)
    assert settings.lengths == (4, 9)
    assert settings.chosen_layers() == LAYERS


def test_a_name_stands_for_all_its_backends_and_the_baseline_is_always_there():
    settings = Settings(**{**GOOD, "layers": ["squared_relu-rotation"]})
    chosen = [(layer.name, layer.backend) for layer in settings.chosen_layers()]
    expected = [("squared_relu-rotation", "toeplitz"), ("squared_relu-rotation", "dense")]
    assert chosen == [("four_gemms", "torch"), *expected]


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("lengths", (), "lengths must be"),
        ("lengths", (4, 0), "lengths must be"),
        ("lengths", (4, 4), "different numbers of tokens"),
        ("lengths", 16, r"lengths must be .*got 16"),
        ("lengths", (2.5,), "whole number"),
        ("lengths", (4, 1000), "lengths must be the cells of a square grid: 961 or 1024.*got 1000"),
        ("direction", "backward", "one of 'forward', 'forward_backward'"),
        ("precision", "bf16", r"precision must be .*got 'bf16'"),
        ("dim", 0, r"dim must be .*got 0"),
        ("heads", 1, "heads must be at least 2.*got 1"),
        ("heads", 3, "a divisor of dim = 8"),
        ("batch", 0, r"batch must be .*got 0"),
        ("batch", True, r"batch must be .*got True"),
        ("repeats", 0, r"repeats must be .*got 0"),
        ("warmup", -1, r"warmup must be .*got -1"),
        ("threads", 0, r"threads must be .*got 0"),
        ("threads", 1.5, r"threads must be .*got 1.5"),
        ("layers", (), "layers must be"),
        ("layers", "softmax", "list of names"),
        ("layers", ("softmx",), "Did you mean 'softmax'"),
        ("device", "gpu", r"device must be .*got 'gpu'"),
        ("max_bytes", 0.0, r"max_bytes must be .*got 0.0"),
        ("max_bytes", float("nan"), r"max_bytes must be .*got nan"),
        ("max_seconds", -1.0, "max_seconds must be a positive number of seconds.*got -1.0"),
        ("budget_seconds", 0.0, r"budget_seconds must be .*got 0.0"),
    ],
)
@pytest.mark.usefixtures("unchecked_annotations")
def test_a_wrong_setting_is_an_error_that_names_it(argument: str, value: object, message: str):
    with pytest.raises(ValueError, match=message):
        Settings(**{**GOOD, argument: value})


def test_a_gpu_that_is_not_there_is_an_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="Torch finds no GPU"):
        Settings(**{**GOOD, "device": "cuda"})
