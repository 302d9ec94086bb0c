"""Training of models on few images, and their accuracy on shifted test images."""

import functools
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Generator, Tensor, nn
from torch.nn.functional import pad

from reproduction.baselines.blocks import Images  # its package registers ResNet-18
from reproduction.study.model_metrics import compute_logits
from reproduction.study.results import TRAINING
from reproduction.study.study import StudyModel
from reproduction.training import train_steps
from teka.data import Dataset, RandomShift, Split, load
from teka.data.dataset import SPLITS
from teka.files import make_directory
from teka.memory import count_parameters
from teka.provenance import gather_provenance
from teka.training.classifier import compute_learning_rate_factor, make_optimizer

CANVAS = 32
TEST_SEED = 0  # the same test shifts for all models and seeds
NUM_STEPS = 1200
SAVE_EVERY = 300


def train_with_few_images(
    study_model: StudyModel, folder: Path, *, data_dir: str | None = None, command: str = ""
) -> dict[str, Any]:
    """Train a model on some of the images, and measure its accuracy with and without shifts.

    All models are trained for the same number of steps on one thread. Interrupted training resumes
    from the last checkpoint.

    Args:
        study_model: Configuration of the model, with the number of training images.
        folder: Folder of the study, for the checkpoint.
        data_dir: Folder with the files of the data sets.
        command: Command line that is saved with the results.
    """
    torch.set_num_threads(1)
    run = study_model.run
    dataset = load_dataset_on_canvas(run.data, run.image_size, data_dir)
    margin = (CANVAS - run.image_size) // 2
    num_images = run.train_size or len(dataset.train)
    train = dataset.train.take(draw_balanced_subset(dataset.train.labels, num_images, run.seed))
    torch.manual_seed(run.seed)
    model = run.make_model(**dataset.sizes)
    orders = draw_batch_indices(num_images, NUM_STEPS, run.batch_size, run.seed)
    is_shifting = study_model.labels["training"] == "random shifts"

    def make_batch(step: int) -> tuple[Tensor, Tensor]:
        images, labels = train[orders[step]]
        if is_shifting:
            generator = Generator().manual_seed(run.seed * 1_000_003 + step)
            images = make_shift_transform(margin)(images, generator)
        return images, labels

    checkpoint = make_directory("out", folder / TRAINING / study_model.name) / "state.pt"
    is_resumed = checkpoint.is_file()
    start, process_start = time.perf_counter(), time.process_time()
    train_steps(
        model.train(),
        [make_optimizer(model, run)],
        make_batch,
        num_steps=NUM_STEPS,
        rate_factor=lambda step: compute_learning_rate_factor(step, run, NUM_STEPS),
        label_smoothing=run.recipe.label_smoothing,
        gradient_clip=run.recipe.gradient_clip or None,
        is_bfloat16=run.recipe.precision == "bfloat16",
        checkpoint=checkpoint,
        save_every=SAVE_EVERY,
    )
    model.eval()
    seconds, process_seconds = time.perf_counter() - start, time.process_time() - process_start
    return {
        **study_model.labels,
        "seed": run.seed,
        "num_images": num_images,
        "num_steps": NUM_STEPS,
        "parameters": count_parameters(model),
        "seconds": None if is_resumed else round(seconds, 1),
        "process_seconds": None if is_resumed else round(process_seconds, 1),
        **measure_accuracy_and_consistency(model, dataset.test, margin),
        "run": run.to_dict(),
        **gather_provenance(command),
    }


def draw_batch_indices(
    num_images: int, num_steps: int, batch_size: int, seed: int
) -> tuple[Tensor, ...]:
    """Draw the image indices for each training step, in a new random order per epoch."""
    generator = Generator().manual_seed(seed)
    num_epochs = -(-num_steps * batch_size // num_images)
    epochs = [torch.randperm(num_images, generator=generator) for _ in range(num_epochs)]
    return torch.cat(epochs)[: num_steps * batch_size].split(batch_size)


def measure_accuracy_and_consistency(
    model: nn.Module, test: Split, margin: int
) -> dict[str, float]:
    """Measure the accuracy of a model on unshifted and on randomly shifted test images.

    Also measure the consistency: the share of images whose prediction the shift does not change.

    Args:
        model: Model in evaluation mode.
        test: Test images in the middle of the canvas.
        margin: Number of blank pixels around the images. With 0, the shifts are circular.
    """
    predicted = compute_logits(model, test.images).argmax(dim=1)
    moved = compute_logits(model, shift_test_images(test.images, margin)).argmax(dim=1)
    shares = {
        "accuracy": predicted == test.labels,
        "moved_accuracy": moved == test.labels,
        "consistency": predicted == moved,
    }
    return {name: is_true.double().mean().item() for name, is_true in shares.items()}


def draw_balanced_subset(
    labels: Int[Tensor, " images"], size: int, seed: int
) -> Int[Tensor, " chosen"]:
    """Draw the indices of a random subset with the same number of images for each class.

    With the same seed, larger subsets contain the smaller ones.
    """
    num_classes = len(labels.unique())
    order = torch.randperm(len(labels), generator=Generator().manual_seed(seed))
    return torch.cat(
        [order[labels[order] == label][: size // num_classes] for label in range(num_classes)]
    )


def make_shift_transform(margin: int) -> RandomShift:
    """Create a transform that shifts images at random without losing any of their content.

    Args:
        margin: Number of blank pixels around the images. With 0, the shifts are circular.
    """
    return RandomShift(margin) if margin else RandomShift(CANVAS // 2, mode="circular")


@functools.lru_cache(maxsize=1)
def load_dataset_on_canvas(data: str, image_size: int, data_dir: str | None) -> Dataset:
    """Load a data set with its images in the middle of a blank canvas of 32 × 32 pixels.

    The data set has no validation split.
    """
    dataset = load(data, data_dir=data_dir, image_size=image_size, validation_size=0)
    margin = (CANVAS - image_size) // 2
    splits = {}
    for name in SPLITS:
        split = getattr(dataset, name)
        splits[name] = Split(pad(split.images, (margin,) * 4), split.labels)
    return replace(dataset, **splits)


def shift_test_images(images: Images, margin: int) -> Images:
    """Shift each test image by its own random offset, which is the same in every call."""
    return make_shift_transform(margin)(images, Generator().manual_seed(TEST_SEED))
