"""The verdict of an audit: its results in sentences."""

from collections.abc import Sequence
from dataclasses import replace

from teka.audit.caveats import SEVERITIES
from teka.audit.model_output import INVARIANT_OUTPUTS
from teka.audit.report import AuditReport
from teka.audit.statistics.estimate import Estimate
from teka.audit.statistics.metrics import Metrics
from teka.reporting.formatting import listed, write_share, write_size, write_step

CAUSES = {
    "interior": "inside the image",
    "edge": "at the edges of the image",
    "aliasing": "at shifts that are not a multiple of its stride",
}


def verdict(report: AuditReport) -> tuple[str, ...]:
    """Describe the results of an audit in sentences, the most important one first.

    The sentences about an invalid report contain no numbers.
    """
    undecided = [metrics for metrics in report.metrics if _is_undecided(metrics, report)]
    if report.invalid:
        headline = f"{SEVERITIES['invalidates']}: {', '.join(report.invalid)}."
        modes = [_mode_sentence(metrics, report) for metrics in undecided]
        return headline, *modes, *_layer_sentences(report)
    sentences = [_headline(report, undecided)]
    sentences += [_mode_sentence(metrics, report) for metrics in report.metrics]
    sentences += _layer_sentences(report)
    for protocol in report.protocols:
        numbers = "; ".join(
            f"{name} {_interval(number)}" for name, number in protocol.numbers.items()
        )
        sentences.append(f"Protocol {protocol.name}: {numbers}.")
    return tuple(sentences)


def _headline(report: AuditReport, undecided: Sequence[Metrics]) -> str:
    moved = [metrics for metrics in report.metrics if len(metrics.shifts) > 1]
    if not moved:
        return f"No image was moved{_budget_note(report)}."
    decided = [metrics for metrics in moved if metrics not in undecided]
    if all(metrics.is_exact for metrics in decided):
        if undecided:
            return f"{_undecided_sentence(report)} ({_circumstances(undecided, report)})."
        largest = max(metrics.numbers["maximum_error"].value for metrics in moved)
        return (
            f"{_moving(moved)} does not change the output beyond rounding (relative error at most "
            f"{write_size(largest)}; {_circumstances(moved, report)})."
        )
    with_overlap = [metrics for metrics in moved if "overlap" in metrics.numbers]
    if with_overlap:
        worst = min(with_overlap, key=lambda metrics: metrics.numbers["overlap"].value)
        overlap = worst.numbers["overlap"]
        return (
            f"{_moving([worst])} leaves a mean IoU of {write_share(overlap.value)} % with the "
            f"shifted output for the original image ({_confidence(overlap)}; "
            f"{_circumstances([worst], report)})."
        )
    with_predictions = [metrics for metrics in moved if "consistency" in metrics.numbers]
    if with_predictions:
        worst = min(with_predictions, key=lambda metrics: metrics.numbers["consistency"].value)
        changed = _changed(worst)
        if changed.value > 0:
            return (
                f"{_moving([worst])} changes the prediction in {write_share(changed.value)} % of "
                f"cases ({_confidence(changed)}; {_circumstances([worst], report)})."
            )
    with_errors = [metrics for metrics in moved if "maximum_error" in metrics.numbers]
    # An output that is 0 has no size to compare with.
    size = ""
    if with_errors:
        moved = [max(with_errors, key=lambda metrics: metrics.numbers["maximum_error"].value)]
        size = f" by up to {write_size(moved[0].numbers['maximum_error'].value)} of its size"
    never = ", and never the prediction" if with_predictions else ""
    return f"{_moving(moved)} changes the output{size}{never} ({_circumstances(moved, report)})."


def _changed(metrics: Metrics) -> Estimate:
    """Return the share of images and shifts with a changed prediction, 1 − consistency."""
    same = metrics.numbers["consistency"]
    return replace(same, value=1 - same.value, lower=1 - same.upper, upper=1 - same.lower)


def _moving(moved: Sequence[Metrics]) -> str:
    longest = max(abs(step) for metrics in moved for shift in metrics.shifts for step in shift)
    return f"Moving the image by up to {longest:g} pixel{'' if longest == 1 else 's'}"


def _circumstances(moved: Sequence[Metrics], report: AuditReport) -> str:
    """Return the number of images and the modes of a headline."""
    num_images = min(metrics.num_images for metrics in moved)
    images = f"{num_images} image{'' if num_images == 1 else 's'}"
    if any(caveat.name == "too few images" for caveat in report.caveats):
        images = f"only {images}"
    modes = [metrics.movement.mode for metrics in moved]
    return f"{images}, mode{'' if len(modes) == 1 else 's'} {listed(modes)}"


def _confidence(estimate: Estimate) -> str:
    return (
        f"{100 * estimate.confidence:g} % interval {write_share(estimate.lower)} to "
        f"{write_share(estimate.upper)} %"
    )


def _interval(estimate: Estimate) -> str:
    ends = f"{write_share(estimate.lower)} to {write_share(estimate.upper)} %"
    return f"{write_share(estimate.value)} % ({ends})"


def _is_undecided(metrics: Metrics, report: AuditReport) -> bool:
    noise = report.noise_floor
    return len(metrics.shifts) > 1 and noise is not None and metrics.is_within_noise(noise.repeat)


def _undecided_sentence(report: AuditReport) -> str:
    assert report.noise_floor is not None
    return (
        "Whether moving the image changes the output cannot be decided: two calls on the same "
        f"images differ by {write_size(report.noise_floor.repeat)} of their size"
    )


def _budget_note(report: AuditReport) -> str:
    return ": the time budget was spent" if report.settings.get("budget_seconds") else ""


def _mode_sentence(metrics: Metrics, report: AuditReport) -> str:
    numbers = metrics.numbers
    mode = f"Mode {metrics.movement.mode}"
    if len(metrics.shifts) < 2:
        return f"{mode}: no image was moved{_budget_note(report)}."
    where = f"{mode} ({len(metrics.shifts)} shifts, {metrics.num_images} images)"
    if _is_undecided(metrics, report):
        sentence = _undecided_sentence(report)
        return f"{where}: {sentence[0].lower()}{sentence[1:]}."
    if metrics.is_exact:
        effect = (
            "does not change"
            if metrics.output in INVARIANT_OUTPUTS
            else "shifts exactly with the image"
        )
        accuracy = ""
        if "accuracy" in numbers:
            accuracy = f"; {_interval(numbers['accuracy'])} of the images are classified correctly"
        error = write_size(numbers["maximum_error"].value)
        return f"{where}: the output {effect}, with a relative error of at most {error}{accuracy}."
    if "overlap" in numbers:
        lowest = write_share(numbers["minimum_overlap"].value)
        return (
            f"{where}: the mean IoU with the shifted output for the original image is "
            f"{_interval(numbers['overlap'])}, and {lowest} % at the worst shift."
        )
    if "consistency" not in numbers:
        size = retrieval = ""
        if "maximum_error" in numbers:
            size = f" by {write_size(numbers['maximum_error'].value)} of its size"
        if "retrieval" in numbers:
            retrieval = (
                f"; {_interval(numbers['retrieval'])} of the shifted images have features nearest "
                "to those of the same image unshifted"
            )
        return f"{where}: the output changes{size} at the worst shift{retrieval}."
    changes = f"{where}: the prediction changes in {_interval(_changed(metrics))} of cases"
    if "minimum_accuracy" not in numbers:
        return f"{changes}."
    accuracy_by_shift = metrics.curves["accuracy"].values
    worst = metrics.shifts[accuracy_by_shift.index(min(accuracy_by_shift))]
    return (
        f"{changes}; {_interval(numbers['accuracy'])} of the images are classified correctly "
        f"unshifted, {write_share(numbers['minimum_accuracy'].value)} % at the worst shift, "
        f"(dy, dx) = {_write_tuple(worst)}, and {_interval(numbers['worst_shift_accuracy'])} at "
        "every shift."
    )


def _write_tuple(shift: Sequence[int | float]) -> str:
    return f"({', '.join(map(write_step, shift))})"


def _layer_sentences(report: AuditReport) -> list[str]:
    layers = report.layers
    if layers is None:
        return []
    sentences = []
    if layers.breaks:
        causes: dict[str, list[str]] = {}
        for kind, layer in layers.breaks.items():
            causes.setdefault(layer.name, []).append(layer.cause or CAUSES[kind])
        broken = [f"{name} ({', '.join(words)})" for name, words in causes.items()]
        owners = [
            name.rpartition(".")[0] or "the model itself" for name in layers.absolute_embeddings
        ]
        added = f"; absolute positions are added in {' and '.join(owners)}" if owners else ""
        # A grid that moves with the image, as in adaptive sampling, may compensate for a layer.
        role = "Breaks equivariance first"
        if report.is_exact:
            role = "Not equivariant alone, but without effect on the output"
        sentences.append(f"{role}: {', '.join(broken)}{added}.")
    if layers.undecided:
        noise = max(layer.noise for layer in layers.undecided)
        sentences.append(
            f"Whether {layers.undecided[0].name} and the layers after it break equivariance cannot "
            f"be decided: two copies of the same images differ by up to {write_size(noise)} there."
        )
    if not sentences:
        threshold = write_size(layers.threshold)
        sentences.append(
            f"No layer breaks equivariance: every error is at most {threshold} of its output."
        )
    return sentences
