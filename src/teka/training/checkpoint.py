"""Reading a run's checkpoints, without unpickling anything but tensors and plain containers."""

import pickle
from pathlib import Path

import torch
from torch import Tensor, nn

from teka.errors import wrong_value

CHECKPOINTS = "checkpoints"
BEST = "best.ckpt"
LAST = "last.ckpt"


def _read(path: Path) -> dict:
    if not path.is_file():
        raise wrong_value("checkpoint", str(path), "a file; train the run first")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OSError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise wrong_value("checkpoint", str(path), f"a whole checkpoint of plain tensors ({reason})") from error
    if not isinstance(content, dict) or not isinstance(content.get("state_dict"), dict):
        raise wrong_value("checkpoint", str(path), "a checkpoint written by teka train, with a state_dict")
    return content


def read_weights(path: Path) -> dict[str, Tensor]:
    """The model's state_dict of a checkpoint.

    Args:
        path: A checkpoint written in training.

    Raises:
        ValueError: Missing, truncated, or not such a checkpoint.
    """
    prefix = "model."
    state = _read(path)["state_dict"]
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def load_weights(model: nn.Module, path: Path) -> None:
    """Load a checkpoint into a model of the same architecture.

    Args:
        model: The model.
        path: A checkpoint written in training.

    Raises:
        ValueError: The checkpoint cannot be read, or is of another architecture; the model is then as it was.
    """
    found, wanted = read_weights(path), model.state_dict()
    for name in sorted(wanted.keys() | found.keys()):
        came = tuple(found[name].shape) if name in found else "missing"
        expected = tuple(wanted[name].shape) if name in wanted else "absent"
        if came != expected:
            raise wrong_value("checkpoint", str(path), f"this architecture; {name} is {came} there and {expected} here")
    model.load_state_dict(found)


def callback_state(path: Path, callback: str) -> dict[str, object]:
    """What one of Lightning's callbacks kept in a checkpoint, nothing if it kept none.

    Args:
        path: A checkpoint written in training.
        callback: Name of its class.

    Raises:
        ValueError: The checkpoint cannot be read.
    """
    state = _read(path).get("callbacks", {}).get(callback, {})
    return state if isinstance(state, dict) else {}
