"""An assertion for test suites: a classifier's answers stay when its images move; it fails with a counter-example.

    from teka.audit.pytest import assert_consistent

    def test_the_classifier_does_not_mind_where_things_are(model, images):
        assert_consistent(model, images, shifts=4, minimum=0.99)

Nothing of pytest is imported; any test runner will do.
"""

from collections.abc import Callable, Sequence

from jaxtyping import Float, Int
from torch import Tensor

from teka.audit.function import check_evaluation_mode
from teka.audit.measure.measure_responses import measure_responses
from teka.audit.measure.responses import Responses
from teka.audit.settings import AuditSettings, Steps
from teka.audit.shifts import square_shifts
from teka.audit.statistics.metrics import NUMBERS, Metrics
from teka.audit.statistics.summarize import summarize
from teka.checks import check_name
from teka.errors import wrong_value

METRICS = tuple(name for name in NUMBERS if name in ("consistency", "consistency_when_right", "worst_shift_accuracy"))


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
    """Assert that a classifier answers moved images as unshifted ones, in at least a share of the cases.

    The model, in evaluation mode, takes images (B, C, H, W) to logits (B, K). Shifts are the largest of a square, in
    pixels, or a set of them, and a mode one of the function `teka.audit.translate`. The metric is "consistency"
    (answers as unshifted), or with labels (N,) "consistency_when_right" or "worst_shift_accuracy" (images right at
    every shift); its least value that passes is the minimum, in [0, 1]. The seed is that of the intervals' bootstrap.
    All metrics are returned where it passes.

    Raises:
        AssertionError: The metric is below the minimum. The message has its value and interval, and the minimal
            counter-example: the image that is answered otherwise at the shortest shift of all.
        ValueError: A minimum outside [0, 1], an unknown metric, one that needs labels, or what cannot be measured.
    """
    __tracebackhide__ = True
    check_name("metric", metric, METRICS)
    if metric != "consistency" and labels is None:
        raise wrong_value("labels", None, f"a class for each image, for metric {metric!r}")
    if not 0 <= minimum <= 1:
        raise wrong_value("minimum", minimum, "a share from 0 to 1")
    check_evaluation_mode("model", model)
    sizes = tuple(images.shape[2:])
    settings = AuditSettings(square_shifts(shifts) if isinstance(shifts, int) else shifts, background=background)
    asked = model, images, settings.shifts_for(sizes), settings.movement(mode, sizes)
    responses = measure_responses(*asked, labels=labels, output="logits", batch_size=batch_size)
    metrics = summarize(responses, seed=seed)
    if metric not in metrics.numbers:
        raise wrong_value("metric", metric, f"one that these images define: {', '.join(metrics.numbers)}")
    found = metrics.numbers[metric]
    if found.value < minimum:
        example = minimal_counter_example(responses)
        raise AssertionError(
            f"{metric.replace('_', ' ')} {found.value:.4f} ({found.lower:.4f} to {found.upper:.4f}, {len(images)} "
            f"images, {len(metrics.shifts)} shifts, mode {mode!r}) is below {minimum}; {example}"
        )
    return metrics


def minimal_counter_example(responses: Responses) -> str:
    """The first image that is answered otherwise at the shortest shift: by largest step, then sum, then row."""
    predictions = responses.predictions
    if predictions is None:
        raise wrong_value("responses.output", responses.output, "'logits'")
    still = predictions[responses.zero]
    lengths = [(max(map(abs, shift)), sum(map(abs, shift)), row) for row, shift in enumerate(responses.shifts)]
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
