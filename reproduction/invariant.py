"""The command `invariant`, which trains shift-invariant image classifiers and their baselines.

All models use the training recipe of Jordan 2024 (arXiv 2404.00498), which was designed for fast
convolutional networks.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Generator, Tensor, nn
from torch.nn.functional import interpolate, pad

from reproduction.baselines.blocks import Images  # its package registers ResNet-18
from reproduction.study.model_metrics import compute_logits, measure_accuracy
from reproduction.training import MakeBatch, train_steps
from teka.audit import Movement, measure_responses, square_shifts, summarize, wilson_interval
from teka.checks import check_sizes
from teka.cli.app import CommandLine
from teka.codec import encode
from teka.data import Dataset, Split, load
from teka.files import make_directory, write_json
from teka.memory import count_parameters
from teka.models import ConvPerformer, ModelConfig, Performer, save
from teka.models.conv_performer import ConvStage
from teka.prediction import choose_picture_settings
from teka.provenance import gather_provenance

# Hyperparameters were chosen with seeds 0 to 2 on held-out images. Only the following seeds are
# evaluated on the test images.
EVALUATION_SEEDS = (10, 11, 12)
BATCH_SIZE = 250
LABEL_SMOOTHING = 0.2
CROP_SHIFT = 2
# SGD: rate and decay per 1,024 images, of the sum of the losses. AdamW: rate of the mean. AdamW
# trains the attention of a ConvPerformer and the whole vision transformer.
RATE, DECAY, MOMENTUM, BIAS_FACTOR = 1.5, 0.002, 0.85, 64
ATTENTION_RATE, ATTENTION_DECAY = 2e-3, 0.05
WHITENING_IMAGES = 5000
# Architecture and options of each model that can be trained.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "attention": ("conv_performer", {}),
    "without-attention": ("conv_performer", {"attention_heads": (0, 0, 0)}),
    "resnet18": ("resnet18", {}),
    "vit": (  # a vision transformer of 3.1M parameters
        "performer",
        {
            "dim": 192,
            "depth": 7,
            "heads": 6,
            "mlp_ratio": 4.0,
            "patch_size": 4,
            "kernel": "softmax",
            "position": "absolute_table",
        },
    ),
}
IMAGE_SIZE = 32
# Consistency is measured for this number of test images, at shifts of at most two pixels.
CONSISTENCY_IMAGES = 1000
MAX_SHIFT = 2


def train_invariant_classifier(
    *,
    data: Literal["cifar10", "fashion-mnist", "mnist"],
    seed: int,
    out: Path = Path("runs/invariant"),
    data_dir: str | None = None,
    epochs: int = 24,
    threads: int = 2,
    model: Literal["attention", "without-attention", "resnet18", "vit"] = "attention",
    eager: bool = False,
    command: CommandLine = "",
) -> None:
    """Train an image classifier, and save it with its accuracy and its consistency under shifts.

    The default model is exactly invariant to circular shifts by whole pixels. The images are
    resized to 32 × 32 pixels. Run the same command again to resume an interrupted training run
    after its last complete epoch.

    Args:
        data: Data set.
        seed: Random seed. The test images are evaluated only for seeds 10 to 12.
        out: Folder of the results of all seeds.
        data_dir: Folder with the files of the data set.
        epochs: Number of epochs.
        threads: Number of CPU threads.
        model: A ConvPerformer with or without attention, or for comparison a ResNet-18 or a vision
            transformer with softmax attention and absolute positions.
        eager: Do not compile the model.
        command: The command line.
    """
    check_sizes({"epochs": epochs, "threads": threads})
    check_sizes({"seed": seed}, least=0, most=2**32 - 1)
    torch.set_num_threads(threads)
    dataset = load(data, data_dir=data_dir, image_size=IMAGE_SIZE)
    architecture, options = MODELS[model]
    config = ModelConfig(
        architecture,
        **dataset.sizes,
        options=options,
        class_names=dataset.class_names,
        pictures=encode(choose_picture_settings(data, dataset.image_size)),
    )
    path = make_directory("out", out) / f"{data}-{model}-seed-{seed}"
    network, result = train_and_evaluate_classifier(
        config.make_model,
        dataset,
        seed=seed,
        epochs=epochs,
        checkpoint=path.with_suffix(".pt"),
        is_flipped=data != "mnist",  # mirrored digits are not digits
        is_compiled=not eager,
    )
    result |= {"data": data, "model": model, **gather_provenance(command)}
    # The keys match those of model files written by `teka.training.export`.
    facts: dict[str, Any] = {
        "run": {"data": data, "seed": seed},
        "training": {
            name: value for name, value in result.items() if name not in ("data", "seed", "test")
        },
    }
    if "test" in result:
        facts["evaluation"] = {"dataset": data, **result["test"]}
    save(network, path, replace(config, facts=facts), dtype="float16")
    print(f"written: {write_json(path.with_suffix('.json'), result)}")


def train_and_evaluate_classifier(
    make_model: Callable[[], nn.Module],
    dataset: Dataset,
    *,
    seed: int,
    epochs: int,
    checkpoint: Path,
    is_flipped: bool,
    is_compiled: bool,
) -> tuple[nn.Module, dict[str, Any]]:
    """Train an image classifier, and measure its accuracy on held-out images.

    The test accuracy and the consistency under shifts are measured only for `EVALUATION_SEEDS`,
    because the hyperparameters were chosen with other seeds.

    Args:
        make_model: Function that creates the model.
        dataset: Training, held-out and test images.
        seed: Seed of the initial weights, the image order and the augmentation.
        epochs: Number of epochs. An incomplete last batch of an epoch is dropped.
        checkpoint: Checkpoint file, which is updated after each epoch.
        is_flipped: Flip training images left to right.
        is_compiled: Compile the model.

    Returns:
        The model in evaluation mode, and the results to save.
    """
    torch.manual_seed(seed)
    model = make_model()
    if isinstance(model, ConvPerformer):
        model.whitening.fit(dataset.train.images[:WHITENING_IMAGES])
    if is_compiled:
        model.compile(dynamic=False)
    steps_per_epoch = len(dataset.train) // BATCH_SIZE
    num_steps = epochs * steps_per_epoch
    is_resumed = checkpoint.is_file()
    start = time.perf_counter()

    def print_accuracy(step: int) -> None:
        share = measure_accuracy(model.eval(), dataset.validation)
        model.train()
        epoch, seconds = step // steps_per_epoch, time.perf_counter() - start
        print(f"epoch {epoch}: held out {share:.4f}, {seconds:.0f} s", flush=True)

    train_steps(
        model.train(),
        make_optimizers(model),
        make_augmented_batch_function(dataset.train, steps_per_epoch, seed, is_flipped=is_flipped),
        num_steps=num_steps,
        rate_factor=lambda step: compute_rate_factor(step, num_steps),
        label_smoothing=LABEL_SMOOTHING,
        is_bfloat16=True,
        checkpoint=checkpoint,
        save_every=steps_per_epoch,
        after_save=print_accuracy,
    )
    seconds = time.perf_counter() - start
    model.eval()
    result: dict[str, Any] = {
        "seed": seed,
        "epochs": epochs,
        "seconds": None if is_resumed else round(seconds, 1),
        "parameters": count_parameters(model),
        "held_out": measure_accuracy_with_interval(model, dataset.validation, is_flipped),
    }
    if seed in EVALUATION_SEEDS:
        result["test"] = measure_accuracy_with_interval(model, dataset.test, is_flipped)
        result["consistency"] = measure_consistency(model, dataset.test.images)
    return model, result


def make_optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Create the optimizers of a model: Nesterov SGD for convolutions, AdamW for attention.

    A ResNet-18 needs only SGD and a vision transformer only AdamW, but a `ConvPerformer` needs
    both. Its batch-norm biases have 64 times the learning rate of its convolutions.
    """
    rate, decay = RATE * BATCH_SIZE / 1024, DECAY / RATE
    make_sgd = partial(
        torch.optim.SGD, lr=rate, momentum=MOMENTUM, weight_decay=decay, nesterov=True
    )
    make_adamw = partial(torch.optim.AdamW, lr=ATTENTION_RATE, weight_decay=ATTENTION_DECAY)
    if isinstance(model, Performer):
        return [make_adamw(model.parameters())]
    if not isinstance(model, ConvPerformer):
        return [make_sgd(model.parameters())]
    stages = [module for module in model.modules() if isinstance(module, ConvStage)]
    biases = [norm.bias for stage in stages for norm in (stage.first_norm, stage.second_norm)]
    kernels = [kernel.weight for stage in stages for kernel in (stage.first, stage.second)]
    groups = [
        {"params": [*kernels, model.head.weight]},
        {"params": biases, "lr": BIAS_FACTOR * rate, "weight_decay": decay / BIAS_FACTOR},
    ]
    blocks = nn.ModuleList(stage.block for stage in stages if stage.block is not None)
    optimizers: list[torch.optim.Optimizer] = [make_sgd(groups)]
    if blocks:
        optimizers.append(make_adamw(blocks.parameters()))
    return optimizers


def compute_rate_factor(step: int, num_steps: int) -> float:
    """Return the learning-rate factor of a training step.

    The factor rises linearly from 0.2 to 1 during the first 23 % of the steps, and then falls
    linearly to 0.07.
    """
    return float(np.interp(step / num_steps, (0, 0.23, 1), (0.2, 1, 0.07)))


def make_augmented_batch_function(
    split: Split, steps_per_epoch: int, seed: int, *, is_flipped: bool
) -> MakeBatch:
    """Return a function that creates the augmented batch of a training step from its index.

    Each image is shifted at random by up to two pixels. If `is_flipped` is true, it is also
    mirrored in every second epoch: a random half of the images in even epochs, and the other half
    in odd epochs.
    """
    is_first_half = torch.rand(len(split), generator=Generator().manual_seed(seed)) < 0.5

    def make_batch(step: int) -> tuple[Tensor, Tensor]:
        epoch, part = divmod(step, steps_per_epoch)
        generator = Generator().manual_seed(seed * 1_000_003 + epoch)
        order = torch.randperm(len(split), generator=generator)
        rows = order[part * BATCH_SIZE : (part + 1) * BATCH_SIZE]
        images, labels = split[rows]
        if is_flipped:
            is_mirrored = is_first_half[rows] == (epoch % 2 == 0)
            images = torch.where(is_mirrored[:, None, None, None], images.flip(3), images)
        shifts = torch.randint(-CROP_SHIFT, CROP_SHIFT + 1, (len(split), 2), generator=generator)
        return shift_images(images, shifts[rows]), labels

    return make_batch


def shift_images(images: Images, shifts: Int[Tensor, "batch 2"]) -> Images:
    """Shift each image by up to two pixels along each axis, with reflection padding."""
    height, width = images.shape[2:]
    padded = pad(images, (CROP_SHIFT,) * 4, mode="reflect")
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)
    rows, columns = CROP_SHIFT - shifts.T
    return windows[torch.arange(len(images)), :, rows, columns]


def measure_accuracy_with_interval(
    model: nn.Module, split: Split, is_flipped: bool
) -> dict[str, Any]:
    """Measure the accuracy of a model with its 95 % Wilson interval.

    If `is_flipped` is true, also measure the accuracy with test-time flipping: the prediction is
    then based on the sum of the logits of an image and of its mirror image.
    """
    result: dict[str, Any] = {"images": len(split)}
    scores = {"accuracy": compute_logits(model, split.images)}
    if is_flipped:
        mirrored = compute_logits(model, split.images.flip(3))
        scores["accuracy_with_mirror_image"] = scores["accuracy"] + mirrored
    for name, class_scores in scores.items():
        num_correct = int((class_scores.argmax(dim=1) == split.labels).sum())
        result[name] = num_correct / len(split)
        result[f"{name}_interval"] = list(wilson_interval(num_correct, len(split)))
    return result


def measure_consistency(model: nn.Module, images: Tensor) -> dict[str, Any]:
    """Measure how often a shifted image has the same prediction as the original image.

    The share of equal predictions and its 95 % bootstrap interval are measured for three kinds of
    shifts:

    - "circular": circular shifts by whole pixels.
    - "half_pixel": circular shifts by half a pixel, with Fourier interpolation.
    - "crop": shifted crops of the enlarged image.
    """
    images = images[:CONSISTENCY_IMAGES]
    side = images.shape[-1]
    enlarged = interpolate(images, side + 2 * MAX_SHIFT, mode="bilinear", align_corners=False)
    whole_pixels = square_shifts(MAX_SHIFT)
    half_pixels = [(0.0, 0.0), (0.5, 0.0), (0.0, 0.5), (0.5, 0.5)]
    measurements = {
        "circular": (Movement("circular"), images, whole_pixels),
        "half_pixel": (Movement("fourier"), images, half_pixels),
        "crop": (Movement("crop", crop_size=side), enlarged, whole_pixels),
    }
    result: dict[str, Any] = {"images": len(images)}
    for name, (movement, originals, shifts) in measurements.items():
        responses = measure_responses(model, originals, shifts, movement)
        share = summarize(responses).numbers["consistency"]
        result[name], result[f"{name}_interval"] = share.value, [share.lower, share.upper]
    return result
