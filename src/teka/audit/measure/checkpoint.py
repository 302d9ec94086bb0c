"""The state of a measurement in a file, so that one that was stopped can be resumed."""

import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from teka.audit.function import tensor_hash
from teka.errors import require, wrong_value
from teka.files import write_bytes

FORMAT = "2"
# Seconds between two writes: at least these, and this many times what the last one took.
SECONDS_BETWEEN, TIMES_BETWEEN = 5.0, 20.0


class Checkpoint:
    """A safetensors file, in a folder that exists, with the state of a measurement and what it is of.

    The identity has a name for each part and a text that differs if the part does.
    """

    def __init__(self, path: str | Path, identity: Mapping[str, str]) -> None:
        require("safetensors.torch", "checkpoints need", "teka[audit]")
        import safetensors.torch

        self._library = safetensors
        self.path = Path(path)
        if self.path.is_dir() or not self.path.parent.is_dir():
            raise wrong_value("checkpoint", str(path), "a file in a folder that exists")
        self._identity = {"format": FORMAT, **identity}
        self._written = time.perf_counter()
        self._pause = SECONDS_BETWEEN

    def read(self) -> tuple[dict[str, Tensor], dict[str, float | int]] | None:
        """The tensors and numbers that were written, or None if there is no file."""
        if not self.path.exists():
            return None
        try:
            with self._library.safe_open(str(self.path), framework="pt") as file:
                notes = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a mapping
            numbers = json.loads(notes.get("numbers", ""))
            identity = json.loads(notes.get("identity", ""))
            if not (isinstance(numbers, dict) and isinstance(identity, dict)):
                raise ValueError("its notes are no mappings")
        except (self._library.SafetensorError, ValueError, RecursionError) as error:
            raise wrong_value("checkpoint", str(self.path), f"a whole file of a measurement ({error})") from error
        if notes.get("sha256") != _content_hash(tensors, numbers):
            raise wrong_value("checkpoint", str(self.path), "a file that is as it was written; it is damaged")
        parts = self._identity.keys() | identity.keys()
        other = sorted(part for part in parts if identity.get(part) != self._identity.get(part))
        if other:
            expected = f"the state of this measurement; it has another {', '.join(other)}: take another file"
            raise wrong_value("checkpoint", str(self.path), expected)
        return tensors, numbers

    def write(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, float | int]) -> None:
        """Write the state, whole or not at all."""
        start = time.perf_counter()
        notes = {
            "identity": json.dumps(self._identity),
            "numbers": json.dumps(dict(numbers)),
            "sha256": _content_hash(tensors, numbers),
        }
        content = self._library.torch.save({name: tensor.cpu() for name, tensor in tensors.items()}, metadata=notes)
        write_bytes(self.path, content)
        self._written = time.perf_counter()
        self._pause = max(SECONDS_BETWEEN, TIMES_BETWEEN * (self._written - start))

    @property
    def due(self) -> bool:
        """Whether it is time to write again: at most every 5 seconds, and at most a twentieth of the time."""
        return time.perf_counter() - self._written >= self._pause


def _content_hash(tensors: Mapping[str, Tensor], numbers: Mapping[str, float | int]) -> str:
    digest = hashlib.sha256(json.dumps(dict(numbers), sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensor_hash(tensors[name])}\n".encode())
    return digest.hexdigest()
