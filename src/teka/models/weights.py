"""A model's weights as safetensors: packing, unpacking, and whether a config's model is the same function."""

import copy
from collections.abc import Mapping
from types import ModuleType

import torch
from torch import Tensor, nn

from teka.errors import unknown_name, wrong_shape, wrong_value
from teka.models.model_config import ModelConfig
from teka.models.models import MODELS

DTYPES = {"float32": torch.float32, "float16": torch.float16}
# Largest difference of logits over the largest logit: what rounding in float32 may make of them.
TOLERANCE = 1e-3


def pack(model: nn.Module, dtype: str) -> bytes:
    """All parameters and buffers of a model's state_dict, as safetensors.

    Args:
        model: The model.
        dtype: How floating point numbers are stored, "float32" or "float16"; whole numbers stay as they are.

    Raises:
        ImportError: safetensors is not installed.
        ValueError: An unknown dtype, or numbers that are not finite in it.
    """
    library = _import_safetensors()
    if dtype not in DTYPES:
        raise unknown_name("dtype", dtype, DTYPES)
    state = {}
    for name, tensor in model.state_dict().items():
        # A copy, as safetensors refuses parameters that layers share: each has its own in the file.
        kept = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        state[name] = kept.to(DTYPES[dtype]) if kept.is_floating_point() else kept
        if not torch.isfinite(state[name]).all():
            raise wrong_value(f"{name} of the model", "not finite", f"finite numbers that {dtype} can hold")
    return library.save(state)


def unpack(content: bytes, source: str) -> dict[str, Tensor]:
    """The tensors of a safetensors file.

    Args:
        content: The file's content.
        source: What to call it in errors.

    Raises:
        ImportError: safetensors is not installed.
        ValueError: Not safetensors, or cut off.
    """
    library = _import_safetensors()
    from safetensors import SafetensorError

    try:
        return library.load(content)
    except (SafetensorError, KeyError) as error:  # KeyError: a type of numbers that torch does not have
        raise wrong_value("weights", source, f"a whole safetensors file ({error})") from error


def load_tensors(model: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Put tensors into a model; they become numbers of its own type.

    Args:
        model: The model; in an error it stays as it was.
        tensors: A tensor for each entry of its state_dict.
        source: What to call them in errors.

    Raises:
        ValueError: A tensor that is missing or too many, of another shape or kind, or with numbers that are not finite.
    """
    wanted = model.state_dict()
    for name in sorted(wanted.keys() | tensors.keys()):
        if name not in tensors:
            raise wrong_value("weights", source, f"the config's model; {name} is missing")
        if name not in wanted:
            raise wrong_value("weights", source, f"the config's model; it has no {name}")
        came, expected = tensors[name], wanted[name]
        if came.shape != expected.shape:
            raise wrong_shape(
                f"{name} of {source}", came.shape, f"{tuple(expected.shape)}, as the config's model has it"
            )
        if came.dtype != expected.dtype and not (came.is_floating_point() and expected.is_floating_point()):
            raise wrong_value(f"{name} of {source}", str(came.dtype), f"{expected.dtype}, as the config's model has it")
        if not torch.isfinite(came).all():
            raise wrong_value(f"{name} of {source}", "not finite", "finite numbers")
    model.load_state_dict(dict(tensors))


def check_same_logits(model: nn.Module, config: ModelConfig) -> None:
    """Check that a config's model, given a model's weights, is the same function of images.

    Args:
        model: The model; it stays as it is.
        config: What it is said to have been made with.

    Raises:
        ValueError: Another class, other tensors, or other logits of images drawn at random.
    """
    if type(model) is not MODELS[config.model]:
        expected = f"{config.model!r}, a {MODELS[config.model].__name__}, as the config says"
        raise wrong_value("model", type(model).__name__, expected)
    given = copy.deepcopy(model).to("cpu", torch.float32).eval()
    rebuilt = config.make_model()
    load_tensors(rebuilt, given.state_dict(), "the given model")
    shape = (2, config.in_channels, *config.image_size)
    images = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    with torch.inference_mode():
        expected, found = given(images), rebuilt(images)
    if not (found - expected).abs().max() <= TOLERANCE * expected.abs().max():
        expected = "what the model was made with: its logits are not those of a model with these options"
        raise wrong_value("options", dict(config.options), expected)


def _import_safetensors() -> ModuleType:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError("model files need safetensors, which is missing: pip install teka[train]") from error
    return safetensors.torch
