"""Published evaluation protocols, reproduced exactly: accuracy or consistency under shifts."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from teka.audit.measure.measure_responses import measure_responses
from teka.audit.model_call import Model, call_model
from teka.audit.model_output import CLASSIFIERS, infer_kind, predict
from teka.audit.movement import ImageSet, Movement, roll_and_fill
from teka.audit.settings import AuditSettings
from teka.audit.statistics.intervals import Estimate, ImageBootstrap, estimate_share
from teka.audit.statistics.metrics import Metrics, summarize
from teka.checks import check_tensor
from teka.data import lossless_selection
from teka.errors import wrong_argument, wrong_value

Labels = Int[Tensor, " images"] | None
Move = Callable[[Tensor, tuple[int, int]], Tensor]

HORN_SIDE = 32
HORN_MARGIN = 8
ZHANG_CANVAS = 256
ZHANG_CROP = 224
ZHANG_PASSES = 5


@dataclass(frozen=True)
class ProtocolResult:
    """Result of a published evaluation protocol.

    Args:
        name: Name of the protocol.
        procedure: Description of what the protocol measures.
        source: The paper, and also its code if the paper does not specify all details.
        counts: Number of images, number of passes, and other counts.
        numbers: The same quantities as in the paper, by their names.
        metrics: All metrics over the shifts of the protocol, by the name of the set of images.
    """

    name: str
    procedure: str
    source: str
    counts: dict[str, int]
    numbers: dict[str, Estimate]
    metrics: dict[str, Metrics]


def run_horn2021(
    function: Model, images: ImageSet, labels: Labels, settings: AuditSettings
) -> ProtocolResult:
    """Measure the accuracy at 17 horizontal shifts, like Horn et al. (2021).

    The protocol uses images of class 1 with enough background that a shift of up to 8 pixels loses
    no content. These are 854 images of ones in MNIST, or 791 images of trousers in Fashion-MNIST.
    The protocol reports the mean accuracy and the lowest accuracy over the shifts.

    Args:
        function: Classifier.
        images: Images of 32 × 32 pixels.
        labels: Class of each image.
        settings: Output, batch size, device and settings of the intervals.

    Raises:
        ValueError: Labels are missing, or no image has enough background.
    """
    if labels is None:
        raise wrong_value("labels", None, "a class for each image, for protocol 'horn2021'")
    check_tensor("images", images, "images", "channels", HORN_SIDE, HORN_SIDE)
    shifts = [(0, step) for step in range(-HORN_MARGIN, HORN_MARGIN + 1)]
    counts = {}
    numbers = {}
    metrics = {}
    for name, class_index in (("class 1", 1), ("all classes", None)):
        keep = lossless_selection(images, labels, class_index, HORN_MARGIN)
        counts[f"images, {name}"] = int(keep.sum())
        if not keep.any():
            raise wrong_argument(
                "images", f"none of {name} with margins of {HORN_MARGIN} columns", "at least one"
            )
        responses = measure_responses(
            function,
            images[keep],
            shifts,
            Movement("lossless"),
            labels=labels[keep],
            output=settings.output,
            batch_size=settings.batch_size,
            device=settings.device,
        )
        correct = responses.correct
        if correct is None:
            raise wrong_value(
                "the output of the model", responses.output, f"one of {', '.join(CLASSIFIERS)}"
            )
        metrics[name] = summarize(responses, **settings.interval_options)
        numbers[f"mean accuracy, {name}"] = _estimate_overall_share(correct, settings)
        numbers[f"minimum accuracy, {name}"] = metrics[name].numbers["minimum_accuracy"]
    return ProtocolResult(
        "horn2021",
        "Images of class 1 with 32 × 32 pixels are rolled by −8 … 8 columns, and the accuracy is "
        "measured at each shift. The images have at least 9 blank columns on both sides. The same "
        "is done with images of all classes.",
        "Horn et al. 2021, Translational Equivariance in Kernelizable Attention, Figure 1",
        counts,
        numbers,
        metrics,
    )


def run_zhang2019(
    function: Model, images: ImageSet, labels: Labels, settings: AuditSettings
) -> ProtocolResult:
    """Measure the consistency of two random crops, like Zhang (2019).

    Consistency is the probability that a classifier predicts the same class for two random crops of
    an image. Each crop has 224 × 224 pixels. With the same seed and batch size, the crops are the
    same as in the authors' code. The confidence interval reflects the choice of images.

    Args:
        function: Classifier.
        images: Images of 256 × 256 pixels.
        labels: Not used.
        settings: Output, batch size, device, seed and settings of the intervals.
    """
    check_tensor("images", images, "images", "channels", ZHANG_CANVAS, ZHANG_CANVAS)
    agreement = compare_random_positions(
        function,
        images,
        lambda batch, at: batch.narrow(2, at[0], ZHANG_CROP).narrow(3, at[1], ZHANG_CROP),
        low=0,
        high=ZHANG_CANVAS - ZHANG_CROP,
        passes=ZHANG_PASSES,
        settings=settings,
    )
    return ProtocolResult(
        "zhang2019",
        "Two crops of 224 × 224 pixels are taken from each image of 256 × 256 pixels, at random "
        "offsets from 0 to 31 pixels along each axis. All images of a batch have the same two "
        "offsets. The result is the share of images with equal predictions, averaged over 5 "
        "passes.",
        "Zhang 2019, Making Convolutional Networks Shift-Invariant Again, §4.2; "
        "validate_shift in github.com/adobe/antialiased-cnns",
        {"images": len(images), "passes": ZHANG_PASSES, "batch size": settings.batch_size},
        {"consistency of two crops": _estimate_overall_share(agreement, settings)},
        {},
    )


def run_chaman2021(
    function: Model, images: ImageSet, labels: Labels, settings: AuditSettings
) -> ProtocolResult:
    """Measure the consistency of two random shifts, like Chaman and Dokmanić (2021).

    Consistency is the probability that a classifier predicts the same class for two randomly
    shifted copies of an image. It is measured with circular edges and with zero padding. With the
    same seed and batch size, the shifts are the same as in the authors' code.

    There are two differences from the authors' code: zeros are filled in after the normalization,
    and results for CIFAR-10 are averaged over images instead of batches.

    Args:
        function: Classifier.
        images: Images (N, C, H, W).
        labels: Not used.
        settings: Output, batch size, device, seed and settings of the intervals.

    Raises:
        ValueError: The images are smaller than the largest shift.
    """
    smallest = min(images.shape[2:])
    largest = 3 if smallest <= 32 else 32
    if smallest < largest:
        raise wrong_value(
            "the images' size",
            tuple(images.shape[2:]),
            f"at least {largest} for protocol 'chaman2021'",
        )
    numbers = {}
    for name, move in (
        ("circular", lambda batch, place: batch.roll(place, (2, 3))),
        # The window on the zero-padded image moves, so the content moves in the other direction.
        (
            "zero-padded",
            lambda batch, place: roll_and_fill(
                batch, [-step for step in place], batch.new_zeros(())
            ),
        ),
    ):
        agreement = compare_random_positions(
            function, images, move, low=-largest, high=largest, passes=1, settings=settings
        )
        numbers[f"consistency of two shifts, {name}"] = _estimate_overall_share(agreement, settings)
    return ProtocolResult(
        "chaman2021",
        "Each image is shifted twice, by random steps of −m … m − 1 pixels along each axis, with "
        "m = 3 for images up to 32 pixels and m = 32 for larger images. All images of a batch have "
        "the same two shifts. The result is the share of images with equal predictions, for "
        "circular shifts and for shifts with zero padding.",
        "Chaman and Dokmanić 2021, Truly Shift-Invariant Convolutional Neural Networks, §5; "
        "validate and evaluate_random_crop in github.com/achaman2/truly_shift_invariant_cnns",
        {"images": len(images), "largest shift": largest, "batch size": settings.batch_size},
        numbers,
        {},
    )


# Functions of the protocols in `teka.audit.settings.PROTOCOL_NAMES`.
PROTOCOLS = {"horn2021": run_horn2021, "zhang2019": run_zhang2019, "chaman2021": run_chaman2021}


def compare_random_positions(
    function: Model,
    images: ImageSet,
    move: Move,
    *,
    low: int,
    high: int,
    passes: int,
    settings: AuditSettings,
) -> Bool[Tensor, "passes images"]:
    """Classify each image at two random positions, and return a mask of the equal predictions.

    Args:
        function: Classifier.
        images: Images (N, C, H, W).
        move: Function that takes a batch and a position, and moves the batch to this position.
        low: Smallest position along each axis.
        high: Largest position along each axis plus 1.
        passes: Number of passes over the images.
        settings: Output, batch size, device and seed.
    """
    random = np.random.RandomState(settings.seed)
    agreement = torch.empty(passes, len(images), dtype=torch.bool)
    kind = settings.output
    for index in range(passes):
        for start in range(0, len(images), settings.batch_size):
            batch = images[start : start + settings.batch_size].to(settings.device)
            # All images of a batch share the two draws, as in the authors' code after
            # `numpy.random.seed(seed)`.
            places = [tuple(random.randint(low, high, 2).tolist()) for _ in range(2)]
            where = f"on images {start} to {start + len(batch) - 1}"
            predictions = []
            for place in places:
                moved = move(batch, place)
                output = call_model(function, moved, where)
                if kind == "auto":
                    kind, _ = infer_kind(output.values, moved.shape[2:], output.kind)
                predictions.append(predict(output.values, kind).cpu())
            agreement[index, start : start + len(batch)] = predictions[0] == predictions[1]
    return agreement


def _estimate_overall_share(
    outcomes: Bool[Tensor, "rows images"], settings: AuditSettings
) -> Estimate:
    """Estimate the share of successes over all shifts or passes, with a confidence interval.

    The interval reflects the choice of the images, not that of the shifts.
    """
    shares = outcomes.double().mean(dim=0).numpy()
    return estimate_share(shares, ImageBootstrap(len(shares), **settings.interval_options))
