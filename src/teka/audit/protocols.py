"""Procedures of the literature, to the letter."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from teka.audit.images import roll_and_blank
from teka.audit.measure.measure_responses import measure_responses
from teka.audit.model_call import Model, call_model, check_evaluation_mode
from teka.audit.model_output import CLASSIFIERS, infer_kind, predict
from teka.audit.movement import Movement
from teka.audit.settings import AuditSettings
from teka.audit.statistics.bootstrap import ImageResamples, average
from teka.audit.statistics.estimate import BootstrapSettings, Estimate
from teka.audit.statistics.intervals import estimate_mean_share
from teka.audit.statistics.metrics import Metrics
from teka.audit.statistics.summarize import summarize
from teka.checks import check_sizes, check_tensor
from teka.data import lossless_selection
from teka.errors import wrong_argument, wrong_value

Images = Float[Tensor, "images channels height width"]
Labels = Int[Tensor, " images"] | None
Place = tuple[int, int]
Move = Callable[[Tensor, Place], Tensor]

HORN_SIDE, HORN_MARGIN, HORN_CLASS = 32, 8, 1
ZHANG_CANVAS, ZHANG_CROP, ZHANG_PASSES = 256, 224, 5
CHAMAN_SMALL, CHAMAN_SHIFT_OF_SMALL, CHAMAN_SHIFT = 32, 3, 32
USUAL = (
    AuditSettings()
)  # of which how to ask, and the seed of the draws and of the bootstrap, matter here


@dataclass(frozen=True)
class PresetResult:
    """What a procedure of the literature gave."""

    name: str
    procedure: str
    source: str  # the paper, and the code where the paper leaves things open
    counts: dict[str, int]  # of images, passes and the like
    numbers: dict[str, Estimate]  # the source's
    metrics: dict[
        str, Metrics
    ]  # where images move along a set of shifts, by the images they are of


def horn2021(
    function: Model, images: Images, labels: Labels, settings: AuditSettings = USUAL
) -> PresetResult:
    """Mean and lowest accuracy at 17 lossless shifts along dx: 854 ones of MNIST, 791 trousers of Fashion-MNIST."""
    if labels is None:
        raise wrong_value("labels", None, "a class for each image, for preset 'horn2021'")
    check_tensor("images", images, "images", "channels", HORN_SIDE, HORN_SIDE)
    shifts = [(0, step) for step in range(-HORN_MARGIN, HORN_MARGIN + 1)]
    counts, numbers, metrics = {}, {}, {}
    for name, class_index in (("class 1", HORN_CLASS), ("all classes", None)):
        keep = lossless_selection(images, labels, class_index, HORN_MARGIN)
        counts[f"images, {name}"] = int(keep.sum())
        if not keep.any():
            raise wrong_argument(
                "images", f"none of {name} with margins of {HORN_MARGIN} columns", "at least one"
            )
        given = function, images[keep], shifts, Movement("lossless")
        how: Any = {
            "output": settings.output,
            "batch_size": settings.batch_size,
            "device": settings.device,
        }
        responses = measure_responses(*given, labels=labels[keep], **how)
        if responses.predictions is None:
            raise wrong_value(
                "the output of the model", responses.output, f"one of {', '.join(CLASSIFIERS)}"
            )
        metrics[name] = summarize(responses, **settings.intervals)
        share = (responses.predictions == responses.labels).double().mean(dim=0)
        numbers[f"mean accuracy, {name}"] = _mean_share(share, settings)
        numbers[f"minimum accuracy, {name}"] = metrics[name].numbers["minimum_accuracy"]
    return PresetResult(
        "horn2021",
        "Images of 32 × 32 of class 1 with at least 8 blank columns on both sides, the outermost not counted, are "
        "rolled by −8 … 8 columns; accuracy at each shift. Beside them all classes, chosen by the same margins.",
        "Horn et al. 2021, Translational Equivariance in Kernelizable Attention, Figure 1",
        counts,
        numbers,
        metrics,
    )


def zhang2019(
    function: Model, images: Images, labels: Labels = None, settings: AuditSettings = USUAL
) -> PresetResult:
    """Consistency of two random crops of 224 of images of 256: P[argmax f(crop_a x) = argmax f(crop_b x)].

    The offsets are those that the authors' code draws with the same seed and batch size; the interval is over images.
    """
    check_tensor("images", images, "images", "channels", ZHANG_CANVAS, ZHANG_CANVAS)
    drawn: Any = {
        "low": 0,
        "high": ZHANG_CANVAS - ZHANG_CROP,
        "passes": ZHANG_PASSES,
        "settings": settings,
    }
    agreement = pair_agreement(
        function,
        images,
        lambda batch, at: batch.narrow(2, at[0], ZHANG_CROP).narrow(3, at[1], ZHANG_CROP),
        **drawn,
    )
    return PresetResult(
        "zhang2019",
        "Images of 256 × 256; two crops of 224 × 224, their offsets drawn from 0 … 31 along each axis, one pair for "
        "all images of a batch; share of images answered alike, over 5 passes.",
        "Zhang 2019, Making Convolutional Networks Shift-Invariant Again, §4.2; "
        "validate_shift in github.com/adobe/antialiased-cnns",
        {"images": len(images), "passes": ZHANG_PASSES, "batch size": settings.batch_size},
        {"consistency of two crops": _mean_share(agreement.double().mean(dim=0), settings)},
        {},
    )


def chaman2021(
    function: Model, images: Images, labels: Labels = None, settings: AuditSettings = USUAL
) -> PresetResult:
    """Consistency of two random shifts: P[argmax f(T_s x) = argmax f(T_s' x)], circular and zero-padded.

    The shifts are those that the authors' code draws with the same seed and batch size. What comes in is 0 in the
    images' values; the authors' were normalised before. Their CIFAR-10 code averages over batches, this over images.
    """
    smallest = min(images.shape[2:])
    largest = CHAMAN_SHIFT_OF_SMALL if smallest <= CHAMAN_SMALL else CHAMAN_SHIFT
    if smallest < largest:
        raise wrong_value(
            "the images' size",
            tuple(images.shape[2:]),
            f"at least {largest} for preset 'chaman2021'",
        )
    numbers = {}
    for name, move in (
        ("circular", lambda batch, place: batch.roll(place, (2, 3))),
        # A window of the images padded with zeros that moves by a place: content moves back.
        (
            "zero-padded",
            lambda batch, place: roll_and_blank(
                batch, [-step for step in place], batch.new_zeros(())
            ),
        ),
    ):
        agreement = pair_agreement(
            function, images, move, low=-largest, high=largest, passes=1, settings=settings
        )
        numbers[f"consistency of two shifts, {name}"] = _mean_share(agreement[0].double(), settings)
    return PresetResult(
        "chaman2021",
        "Two shifts drawn from −m … m − 1 along each axis, one pair for all images of a batch; m = 3 for images to 32 "
        "pixels, 32 for larger ones; share of images answered alike, rolled round the edges, and with zeros coming in.",
        "Chaman and Dokmanić 2021, Truly Shift-Invariant Convolutional Neural Networks, §5; validate and "
        "evaluate_random_crop in github.com/achaman2/truly_shift_invariant_cnns",
        {"images": len(images), "largest shift": largest, "batch size": settings.batch_size},
        numbers,
        {},
    )


# The functions by name, one for each of `teka.audit.settings.PRESET_NAMES`.
PRESETS = {"horn2021": horn2021, "zhang2019": zhang2019, "chaman2021": chaman2021}


def pair_agreement(
    function: Model,
    images: Images,
    move: Move,
    *,
    low: int,
    high: int,
    passes: int,
    settings: AuditSettings,
) -> Bool[Tensor, "passes images"]:
    """Whether argmax f is the same at two random places, low to high − 1 along each axis, for every image and pass."""
    check_evaluation_mode("function", function)
    check_sizes({"images": len(images), "passes": passes})
    random = np.random.RandomState(settings.seed)
    agreement, kind = torch.empty(passes, len(images), dtype=torch.bool), settings.output
    for index in range(passes):
        for start in range(0, len(images), settings.batch_size):
            batch = images[start : start + settings.batch_size].to(settings.device)
            # As the sources' code draws after `numpy.random.seed(seed)`: all images of a batch share the two draws.
            places = [tuple(random.randint(low, high, 2).tolist()) for _ in range(2)]
            what, answers = f"on images {start} to {start + len(batch) - 1}", []
            for seen in (move(batch, place) for place in places):
                output = call_model(function, seen, lambda what=what: what)
                if kind == "auto":
                    kind, _ = infer_kind(
                        output.values, seen.shape[2:], output.kind, among=CLASSIFIERS
                    )
                answers.append(predict(output.values, kind).cpu())
            agreement[index, start : start + settings.batch_size] = answers[0] == answers[1]
    return agreement


def _mean_share(shares: Float[Tensor, " images"], settings: AuditSettings) -> Estimate:
    resamples = ImageResamples(len(shares), BootstrapSettings(**settings.intervals))
    return estimate_mean_share(average(shares[None], resamples), settings.confidence)
