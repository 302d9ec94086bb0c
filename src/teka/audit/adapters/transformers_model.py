"""Image classifiers of `transformers`: a folder that `save_pretrained` wrote, or an id of the Hugging Face hub."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from teka.audit.adapters.image_processor import STEPS, read_processor, read_processor_file
from teka.audit.adapters.preprocessing import Preprocessing
from teka.audit.adapters.subject import Size, Subject, spoken_names, subject_of_module
from teka.errors import FOREIGN, require, wrong_value

# Largest differences from the image processor itself, in levels of 255, mean and maximum over pixels: it rounds to
# whole levels after each axis, which makes less than half of the mean.
PROCESSOR_TOLERANCE = (1.0, 4.0)


def load_transformers(source: str, *, input_size: Size = None, device: torch.device | str | None = None) -> Subject:
    """An image classifier of `transformers`, with the settings of its image processor.

    Weights are read as safetensors only, in float32; code of a repository's own is never run. The settings of the image
    processor are read, and what they are read as is compared with the processor itself on a picture, where the
    installed libraries can build it; without settings images go in as they are. Images are resized to `input_size`, by
    default that of the image processor, else of the config.
    """
    library = require("transformers", "this model needs", "teka[audit]")
    folder = Path(source).expanduser()
    source = str(folder) if folder.is_dir() else source
    with _quiet(library):
        try:
            settings = {"use_safetensors": True, "trust_remote_code": False, "dtype": torch.float32}
            models = library.AutoModelForImageClassification
            module, found = models.from_pretrained(source, output_loading_info=True, **settings)
        # What the library raises depends on what is missing or damaged.
        except FOREIGN as error:
            reason = " ".join(str(error).split())
            expected = f"an image classifier of transformers with its weights as safetensors ({reason})"
            raise wrong_value("model", source, expected) from error
        missing = sorted(found["missing_keys"]) + sorted(map(str, found["mismatched_keys"]))
        if missing:
            expected = f"weights for the whole model; {', '.join(missing[:3])} would be left at random"
            raise wrong_value("model", source, expected)
        in_channels = int(getattr(module.config, "num_channels", 3))
        transform, note = _preprocessing(library, source, in_channels)
    transform, size = _input_size(module.config, transform, input_size)
    return subject_of_module(
        module.eval(),
        Path(source).name if Path(source).is_dir() else source,
        "transformers",
        transform,
        size,
        device,
        class_names=spoken_names(module.config.id2label),
        num_classes=module.config.num_labels,
        note=note,
    )


def _input_size(config: Any, transform: Preprocessing, wanted: Size) -> tuple[Preprocessing, tuple[int, int] | None]:
    """The preprocessing that makes the size of the model's images, and that size."""
    if wanted is not None:
        return transform.resized_to(wanted)
    size = transform.crop or transform.resize
    if isinstance(size, tuple):
        return transform, size
    side = getattr(config, "image_size", None)
    return (transform, None) if transform.resize is not None or side is None else transform.resized_to(side)


def _preprocessing(library: Any, source: str, in_channels: int) -> tuple[Preprocessing, str]:
    """The preprocessing, and what to say of it."""
    try:
        processor = library.AutoImageProcessor.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError, ImportError, TypeError) as error:
        folder = Path(source)
        read = read_processor_file(folder, in_channels) if folder.is_dir() else None
        if read is not None:
            return read, "the image processor could not be built, so its settings were read and not compared with it"
        plain = "no settings of an image processor were found: images in [0, 1] go in without normalisation"
        if folder.is_dir():
            return Preprocessing(in_channels), plain
        reason = " ".join(str(error).split())
        raise wrong_value("model", source, f"a model with an image processor ({reason})") from error
    # A step that the processor's class switches off by None is left out of what it writes.
    steps = {step: getattr(processor, step, None) for step in STEPS}
    transform = read_processor({**steps, **processor.to_dict()}, in_channels, f"the image processor of {source}")
    _compare(processor, transform, source)
    return transform, ""


def _compare(processor: Any, transform: Preprocessing, source: str) -> None:
    """Check that what was read of a processor's settings is what the processor does, on a smooth picture."""
    channels = transform.in_channels or 3
    height, width = 60, 75
    rows, columns = np.mgrid[:height, :width] / (height - 1)
    waves = [0.5 + 0.4 * np.sin((2 + channel) * rows + (5 - channel) * columns) for channel in range(channels)]
    levels = np.rint(255 * np.stack(waves, axis=-1)).astype(np.uint8)
    if channels == 1:
        levels = np.repeat(levels, 3, axis=-1) if getattr(processor, "do_convert_rgb", False) else levels
    answer = np.asarray(processor(levels, input_data_format="channels_last")["pixel_values"][0], dtype=np.float32)
    expected = torch.from_numpy(np.ascontiguousarray(answer))
    picture = torch.from_numpy(levels).permute(2, 0, 1)[None].to(torch.float32) / 255
    came = transform.normalize(transform.place(picture))[0]
    if expected.shape != came.shape:
        raise wrong_value("model", source, f"a known image processor: {type(processor).__name__} gives other sizes")
    deviation = 1.0 if transform.normalization is None else min(transform.normalization.deviation)
    differences = (came - expected).abs() * deviation * 255
    found = (float(differences.mean()), float(differences.max()))
    if not all(one <= most for one, most in zip(found, PROCESSOR_TOLERANCE, strict=True)):
        expected = (
            f"a known image processor: {type(processor).__name__} does something else than its settings say "
            f"(a difference of {found[0]:.1f} levels of 255 in the mean, {found[1]:.1f} at most)"
        )
        raise wrong_value("model", source, expected)


@contextlib.contextmanager
def _quiet(library: Any) -> Iterator[None]:
    """Without the library's progress bars and reports, which would stand between the lines of a command."""
    logging = library.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
