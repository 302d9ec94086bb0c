"""A tiny random classifier of transformers in a folder."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import torch
import transformers

CLASSES = ("ant", "bee", "cat", "dog", "emu")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide the warning about missing torchvision, and the progress bars of saving."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.disable(before)


def write_vit(folder: Path, classes: tuple[str, ...] = CLASSES, side: int = 12) -> None:
    """Save a random gray ViT with patches of 4 pixels, and its image processor."""
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        image_size=side,
        patch_size=4,
        num_channels=1,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        id2label=dict(enumerate(classes)),
        label2id={name: label for label, name in enumerate(classes)},
    )
    with quiet():
        transformers.ViTForImageClassification(config).save_pretrained(folder)
        size = {"height": side, "width": side}
        transformers.ViTImageProcessor(
            size=size, image_mean=[0.3], image_std=[0.7]
        ).save_pretrained(folder)
