"""An assertion for test suites: a classifier keeps its predictions when its images move.

    from teka.audit.pytest import assert_consistent

    def test_the_classifier_keeps_its_predictions(model, images):
        assert_consistent(model, images, shifts=4, minimum=0.99)

If the assertion fails, its message has a counter-example. The module does not import pytest, so that any test runner
can use it.
"""

from collections.abc import Callable, Sequence
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from teka.audit.caveats import SEVERITIES, validity
from teka.audit.function import check_evaluation_mode
from teka.audit.measure.distances import noise_floor
from teka.audit.measure.measure_responses import measure_responses
from teka.audit.measure.responses import Responses
from teka.audit.model_output import CLASSIFIERS
from teka.audit.movement import TRANSLATION_MODES
from teka.audit.parts import FEW_IMAGES
from teka.audit.settings import AuditSettings, Steps
from teka.audit.shifts import square_set
from teka.audit.statistics.metrics import NUMBERS, Metrics
from teka.audit.statistics.summarize import summarize
from teka.checks import check_callable, check_name, check_number, check_tensor, is_integer
from teka.errors import wrong_value

METRICS = tuple(
    name
    for name in NUMBERS
    if name in ("consistency", "consistency_when_right", "worst_shift_accuracy")
)


def assert_consistent(
    model: Callable[[Tensor], object],
    images: Float[Tensor, "images channels height width"],
    labels: Int[Tensor, " images"] | None = None,
    *,
    shifts: int | Sequence[Steps] = 4,
    mode: str = "circular",
    minimum: float = 1.0,
    metric: str = "consistency",
    background: float | int | tuple[float | int, ...] = 0.0,
    batch_size: int = 256,
    seed: int = 0,
) -> Metrics:
    """Assert that a classifier keeps its prediction for moved images, in at least a share of the cases.

    The checks of validity are those of `teka audit`: a classifier that predicts one class for everything, that is no
    better than chance, that is not deterministic, or whose output depends on the batch does not pass, whatever its
    consistency.

    Args:
        model: The classifier, in evaluation mode. It takes images (B, C, H, W) to any output that
            `teka.audit.measure_responses` reads as that of a classifier.
        images: Images (N, C, H, W).
        labels: Their classes (N,), or None.
        shifts: The largest shift of a square, in pixels, or a set of shifts.
        mode: A mode of the function `teka.audit.translate`.
        minimum: The least value of the metric that passes, in [0, 1].
        metric: "consistency" (the prediction stays as for the unshifted image), or with labels
            "consistency_when_right" or "worst_shift_accuracy" (images that are right at every shift).
        background: Value of the images' background: one, or one for each channel.
        batch_size: Images for one call.
        seed: Seed of the intervals' bootstrap.

    Returns:
        All metrics.

    Raises:
        AssertionError: The metric is below the minimum, or the results are invalid. The message has the metric with
            its interval and the minimal counter-example: the image whose prediction changes at the shortest shift of
            all; or it has the reason why the results are invalid.
        ValueError: A minimum outside [0, 1], an unknown metric, one that needs labels, or what cannot be measured.
    """
    __tracebackhide__ = True
    check_name("metric", metric, METRICS)
    if metric != "consistency" and labels is None:
        raise wrong_value("labels", None, f"a class for each image, for metric {metric!r}")
    check_number("minimum", minimum, "a share from 0 to 1", low=0, high=1)
    check_callable("model", model)
    check_evaluation_mode("model", model)
    check_name("mode", mode, TRANSLATION_MODES)
    check_tensor("images", images, "images", "channels", "height", "width")
    sizes = tuple(images.shape[2:])
    step_set: Any = square_set("shifts", shifts) if is_integer(shifts) else shifts
    settings = AuditSettings(
        step_set, modes=(mode,), background=background, batch_size=batch_size, seed=seed
    )
    movement = settings.movement(mode, sizes)
    responses = measure_responses(
        model, images, settings.shifts_for(sizes), movement, labels=labels, batch_size=batch_size
    )
    if responses.predictions is None:
        raise wrong_value(
            "the output of model", responses.output, f"one of {', '.join(CLASSIFIERS)}"
        )
    metrics = summarize(responses, seed=seed)
    if metric not in metrics.numbers:
        raise wrong_value(
            "metric", metric, f"one that these images define: {', '.join(metrics.numbers)}"
        )
    few = movement.move(movement.place(images[:FEW_IMAGES]), (0, 0))
    repeat = noise_floor(model, few, batch_size=batch_size, precision=False).repeat
    found = validity(model, few, [responses], repeat, batch_size=batch_size)
    if invalid := [caveat for caveat in found if caveat.severity == "invalidates"]:
        reasons = " ".join(f"{caveat.name}: {caveat.message}" for caveat in invalid)
        raise AssertionError(f"{SEVERITIES['invalidates'].lower()}, {reasons}")
    number = metrics.numbers[metric]
    if number.value < minimum:
        example = minimal_counter_example(responses)
        raise AssertionError(
            f"{metric.replace('_', ' ')} {number.value:.4f} ({number.lower:.4f} to {number.upper:.4f}, {len(images)} "
            f"images, {len(metrics.shifts)} shifts, mode {mode!r}) is below {minimum}; {example}"
        )
    return metrics


def minimal_counter_example(responses: Responses) -> str:
    """Return the first image whose prediction changes at the shortest shift: by largest step, then sum, then row."""
    predictions = responses.predictions
    if predictions is None:
        raise wrong_value("responses.output", responses.output, "'logits'")
    still = predictions[responses.zero]
    lengths = [
        (max(map(abs, shift)), sum(map(abs, shift)), row)
        for row, shift in enumerate(responses.shifts)
    ]
    for _, _, row in sorted(lengths):
        changed = ((predictions[row] != still) & responses.evaluated[row]).nonzero().flatten()
        if len(changed):
            index = int(changed[0])
            label = "" if responses.labels is None else f" of class {int(responses.labels[index])}"
            return (
                f"the shortest shift that changes an answer is {tuple(responses.shifts[row])}: image {index}{label} is "
                f"answered {int(still[index])} unshifted and {int(predictions[row, index])} there "
                f"({len(changed)} of {responses.num_images} images change)"
            )
    return "no shift changes an answer"
