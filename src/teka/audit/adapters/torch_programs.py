"""Programs that torch has saved with their weights: TorchScript and `torch.export`."""

import logging
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from teka.audit.adapters.load_options import LoadOptions
from teka.audit.adapters.loaded_model import LoadedModel, read_as, tensors_only, wrap_module
from teka.audit.adapters.preprocessing import Preprocessing
from teka.audit.model_call import calling
from teka.errors import wrong_value
from teka.files import expand_user

NOTE = "a program does not say how its images are to be made: unless --mean and --std say so they go in as they are"


def in_batches_of(
    size: int | None,
    answer: Callable[[Tensor], Tensor],
    images: Float[Tensor, "batch channels height width"],
) -> Tensor:
    """What a program that takes batches of one size alone says of images; the last batch is filled up with copies."""
    if size is None or not len(images):
        return answer(images)
    parts = []
    for part in images.split(size):
        filled = torch.cat([part, part[-1:].expand(size - len(part), *part.shape[1:])])
        parts.append(answer(filled)[: len(part)])
    return torch.cat(parts)


class ExportedProgram(nn.Module):
    """The module of an exported program, whose batches are of one size where it was exported so."""

    def __init__(self, module: nn.Module, batch_size: int | None) -> None:
        super().__init__()
        self.program, self.batch_size = module, batch_size
        for part in self.modules():
            part.training = False

    def train(self, mode: bool = True) -> "ExportedProgram":
        """Nothing: an exported program has no modes, and computes what was exported."""
        return self

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Tensor:
        """What the program says of images."""
        return in_batches_of(self.batch_size, self.program, images)


def is_script(spec: str) -> bool:
    """Return True for a file of TorchScript, which holds code as well as weights."""
    file = expand_user(spec)
    if file.suffix == ".pt2" or not file.is_file():
        return False
    try:
        with zipfile.ZipFile(file) as archive:
            return any("/code/" in name for name in archive.namelist())
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError):
        return False


def check_trusted(path: str, load_options: LoadOptions, kind: str, danger: str) -> None:
    """Check that the user trusts a file that contains a program, before any of it reaches torch."""
    if not load_options.trust:
        raise ValueError(
            f"trust must be True to load {path!r}, got False. {kind} {danger} with all your rights. If you would run "
            "a script from the same source, pass --trust (in Python, trust=True)."
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what torch logs about a damaged file before it raises, because the error says the same in one line."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def load_script(path: str, load_options: LoadOptions) -> LoadedModel:
    """Load a file that `torch.jit.save` wrote."""
    check_trusted(path, load_options, "A TorchScript program", "can read and write any file")
    with read_as(path, "a program of TorchScript"), _quiet(), calling():
        module = torch.jit.load(expand_user(path), map_location=load_options.device or "cpu").eval()
    filters = next((one for one in module.state_dict().values() if one.ndim == 4), None)
    in_channels = None if filters is None or filters.shape[1] not in (1, 3) else filters.shape[1]
    transform, size = load_options.fit(Preprocessing(in_channels))
    return wrap_module(module, Path(path).stem, "torchscript", transform, size, None, note=NOTE)


def load_exported(path: str, load_options: LoadOptions) -> LoadedModel:
    """Load a file that `torch.export.save` wrote and whose only input is images (B, C, H, W)."""
    check_trusted(path, load_options, "A torch.export program", "can run any code")
    with tensors_only(path, "a program of torch.export"), _quiet(), calling():
        program = torch.export.load(expand_user(path))
    inputs = [one for one in program.graph.nodes if one.name in program.graph_signature.user_inputs]
    shapes: list[Any] = [getattr(one.meta.get("val"), "shape", ()) for one in inputs]
    if len(shapes) != 1 or len(shapes[0]) != 4:
        raise wrong_value(
            f"the inputs of {path}", [tuple(one) for one in shapes], "one of images, with four axes"
        )
    batch, channels, height, width = (one if isinstance(one, int) else None for one in shapes[0])
    size = None if height is None or width is None else (height, width)
    transform, size = load_options.fit(Preprocessing(channels, size, crop=size))
    module = ExportedProgram(program.module(), batch)
    return wrap_module(
        module, Path(path).stem, "torch.export", transform, size, load_options.device, note=NOTE
    )
