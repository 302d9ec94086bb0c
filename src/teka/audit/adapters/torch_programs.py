"""Loading of programs that torch saved with their weights: TorchScript and `torch.export`."""

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

NOTE = (
    "a program does not say how its images are to be made: "
    "they are normalized only with --mean and --std"
)


def in_batches_of(
    size: int | None,
    answer: Callable[[Tensor], Tensor],
    images: Float[Tensor, "batch channels height width"],
) -> Tensor:
    """Call a program with batches of a fixed size, and return the outputs of all images.

    The last batch is filled up with copies of its last image.

    Args:
        size: Batch size of the program, or None for any size.
        answer: The program.
        images: Images (B, C, H, W).
    """
    if size is None or not len(images):
        return answer(images)
    parts = []
    for part in images.split(size):
        filled = torch.cat([part, part[-1:].expand(size - len(part), *part.shape[1:])])
        parts.append(answer(filled)[: len(part)])
    return torch.cat(parts)


class ExportedProgram(nn.Module):
    """Module of an exported program, which may require a fixed batch size.

    Args:
        module: Module of the program.
        batch_size: Required batch size, or None.
    """

    def __init__(self, module: nn.Module, batch_size: int | None) -> None:
        super().__init__()
        self.program, self.batch_size = module, batch_size
        for part in self.modules():
            part.training = False

    def train(self, mode: bool = True) -> "ExportedProgram":
        """Return the module unchanged, because an exported program has no training mode."""
        return self

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Tensor:
        """Return the output of the program for images."""
        return in_batches_of(self.batch_size, self.program, images)


def is_script(spec: str) -> bool:
    """Return True for a TorchScript file, which contains code as well as weights."""
    file = expand_user(spec)
    if file.suffix == ".pt2" or not file.is_file():
        return False
    try:
        with zipfile.ZipFile(file) as archive:
            return any("/code/" in name for name in archive.namelist())
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError):
        return False


def check_trusted(path: str, load_options: LoadOptions, kind: str, danger: str) -> None:
    """Check that the user trusts a file that contains a program, before torch reads it.

    Raises:
        ValueError: The file is not trusted.
    """
    if not load_options.trust:
        raise ValueError(
            f"trust must be True to load {path!r}, got False. {kind} {danger} with all your "
            "rights. If you would run a script from the same source, pass --trust (in Python, "
            "trust=True)."
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence log messages of torch about a damaged file, because the error says the same."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def load_script(path: str, load_options: LoadOptions) -> LoadedModel:
    """Load a TorchScript file of `torch.jit.save`."""
    check_trusted(path, load_options, "A TorchScript program", "can read and write any file")
    with read_as(path, "a program of TorchScript"), _quiet(), calling():
        module = torch.jit.load(expand_user(path), map_location=load_options.device or "cpu").eval()
    parameters = module.state_dict().values()
    filters = next((tensor for tensor in parameters if tensor.ndim == 4), None)
    in_channels = None if filters is None or filters.shape[1] not in (1, 3) else filters.shape[1]
    transform, size = load_options.fit(Preprocessing(in_channels))
    return wrap_module(module, Path(path).stem, "torchscript", transform, size, None, note=NOTE)


def load_exported(path: str, load_options: LoadOptions) -> LoadedModel:
    """Load a file of `torch.export.save` whose only input is images (B, C, H, W)."""
    check_trusted(path, load_options, "A torch.export program", "can run any code")
    with tensors_only(path, "a program of torch.export"), _quiet(), calling():
        program = torch.export.load(expand_user(path))
    names = program.graph_signature.user_inputs
    inputs = [node for node in program.graph.nodes if node.name in names]
    shapes: list[Any] = [getattr(node.meta.get("val"), "shape", ()) for node in inputs]
    if len(shapes) != 1 or len(shapes[0]) != 4:
        raise wrong_value(
            f"the inputs of {path}",
            [tuple(shape) for shape in shapes],
            "one of images, with four axes",
        )
    batch, channels, height, width = (size if isinstance(size, int) else None for size in shapes[0])
    size = None if height is None or width is None else (height, width)
    transform, size = load_options.fit(Preprocessing(channels, size, crop=size))
    module = ExportedProgram(program.module(), batch)
    return wrap_module(
        module, Path(path).stem, "torch.export", transform, size, load_options.device, note=NOTE
    )
