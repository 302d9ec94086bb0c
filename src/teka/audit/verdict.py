"""Verdict of an audit: sentences about its results, and statements about the layers involved."""

from collections.abc import Sequence
from dataclasses import replace

from teka.audit.caveats import GUESSED_KINDS, SEVERITIES
from teka.audit.layers.fixes import FIXES
from teka.audit.layers.localize import LayerFindings, is_submodule
from teka.audit.model_output import INVARIANT_OUTPUTS
from teka.audit.report import AuditReport
from teka.audit.statistics.intervals import Estimate
from teka.audit.statistics.metrics import Metrics
from teka.precision import rounding_error_bound
from teka.reporting.formatting import (
    format_count,
    format_number,
    format_share,
    format_step,
    join_words,
)

BREAK_PLACES = {
    "interior": "inside the image",
    "edge": "at the edge of the image",
    "aliasing": "at shifts that are not a multiple of its stride",
}
# Errors up to this multiple of the difference between two identical calls count as noise.
NOISE_FACTOR = 10.0
# Number of layers that are listed because they add the most error.
NUM_LARGEST_INCREASES = 3


def verdict(report: AuditReport) -> tuple[str, ...]:
    """Summarize the results of an audit in sentences, starting with the most important result.

    If the results are invalid, the first sentence says why, and no results are quoted.
    """
    undecided = [metrics for metrics in report.metrics if _is_explained_by_noise(metrics, report)]
    if report.invalid:
        headline = f"{SEVERITIES['invalidates']}: {', '.join(report.invalid)}."
        modes = [_mode_sentence(metrics, report) for metrics in undecided]
        return headline, *modes, *_layer_sentences(report)
    sentences = [_headline_sentence(report, undecided)]
    if len(report.metrics) == 1:  # the headline describes the effect in this mode
        if details := "; ".join(_metric_clauses(report.metrics[0])):
            sentences.append(f"{details[0].upper()}{details[1:]}.")
    else:
        sentences += [_mode_sentence(metrics, report) for metrics in report.metrics]
    sentences += _layer_sentences(report)
    for protocol in report.protocols:
        numbers = "; ".join(
            f"{name} {_format_estimate(number)}" for name, number in protocol.numbers.items()
        )
        sentences.append(f"Protocol {protocol.name}: {numbers}.")
    return tuple(sentences)


def _headline_sentence(report: AuditReport, undecided: Sequence[Metrics]) -> str:
    """Return the first sentence of a verdict, which describes the effect of shifts.

    If there are several modes, the sentence is about the mode with the largest effect.

    Args:
        report: Report of the audit.
        undecided: Metrics of the modes in which noise could explain all errors.
    """
    moved = [metrics for metrics in report.metrics if len(metrics.shifts) > 1]
    if not moved:
        return f"No image was moved{_budget_note(report)}."
    worst = max(moved, key=_effect_sort_key)
    described = [worst]
    if all(metrics.is_exact for metrics in moved if metrics not in undecided):
        if undecided:
            images = _describe_images_and_modes(undecided, report)
            return f"{_undecided_sentence(report)} ({images})."
        described = moved
    longest = max(abs(step) for metrics in described for shift in metrics.shifts for step in shift)
    effect, detail = _describe_effect(worst)
    # Say in the first sentence if the kind of the output was guessed.
    guesses = [caveat.name for caveat in report.caveats if caveat.name in GUESSED_KINDS]
    notes = "; ".join([*detail, _describe_images_and_modes(described, report), *guesses])
    pixels = "pixel" if longest == 1 else "pixels"
    return f"Moving the image by up to {longest:g} {pixels} {effect} ({notes})."


def _effect_sort_key(metrics: Metrics) -> tuple[float, float, float]:
    """Return a key that sorts modes of shifting by how much shifts change the output.

    The key compares the loss of overlap first, then the loss of consistency, and then the error.
    """
    values = {name: number.value for name, number in metrics.numbers.items()}
    return (
        1 - values.get("overlap", 1.0),
        1 - values.get("consistency", 1.0),
        values.get("maximum_error", 0.0),
    )


def _describe_effect(metrics: Metrics) -> tuple[str, list[str]]:
    """Describe how shifts change the output of the model in one mode of shifting.

    Returns:
        A verb phrase such as "changes the prediction in 9.1 % of cases", and a list that contains
        the confidence interval or the largest error, or nothing.
    """
    numbers = metrics.numbers
    if metrics.is_exact:
        effect = "moves the output along exactly, up to rounding"
        if metrics.output in INVARIANT_OUTPUTS:
            effect = "does not change the output beyond rounding"
        return effect, [f"relative error at most {format_number(numbers['maximum_error'].value)}"]
    if "overlap" in numbers:
        overlap = numbers["overlap"]
        effect = f"leaves a mean IoU of {format_share(overlap.value)} % with the moved output"
        return f"{effect} for the original image", [_format_confidence_interval(overlap)]
    never = ""
    if "consistency" in numbers:
        same = numbers["consistency"]
        changed = replace(same, value=1 - same.value, lower=1 - same.upper, upper=1 - same.lower)
        if changed.value > 0:
            effect = f"changes the prediction in {format_share(changed.value)} % of cases"
            return effect, [_format_confidence_interval(changed)]
        never = ", and never the prediction"
    # An output of zero has no relative error.
    size = ""
    if "maximum_error" in numbers:
        size = f" by up to {format_number(numbers['maximum_error'].value)} of its size"
    return f"changes the output{size}{never}", []


def _describe_images_and_modes(moved: Sequence[Metrics], report: AuditReport) -> str:
    """Describe the number of images and the modes, such as "10 images, mode circular"."""
    num_images = min(metrics.num_images for metrics in moved)
    images = format_count(num_images, "image")
    if any(caveat.name == "too few images" for caveat in report.caveats):
        images = f"only {images}"
    modes = [metrics.movement.mode for metrics in moved]
    return f"{images}, mode{'' if len(modes) == 1 else 's'} {join_words(modes)}"


def _format_confidence_interval(estimate: Estimate) -> str:
    return f"{100 * estimate.confidence:g} % interval {_format_ends(estimate)}"


def _format_estimate(estimate: Estimate) -> str:
    return f"{format_share(estimate.value)} % ({_format_ends(estimate)})"


def _format_ends(estimate: Estimate) -> str:
    return f"{format_share(estimate.lower)} to {format_share(estimate.upper)} %"


def _is_explained_by_noise(metrics: Metrics, report: AuditReport) -> bool:
    """Return True if randomness in the model could explain the errors at all shifts of a mode."""
    noise = report.noise_floor
    largest = metrics.numbers.get("maximum_error")
    if noise is None or largest is None or len(metrics.shifts) < 2:
        return False
    is_random = noise.repeat > rounding_error_bound(metrics.epsilon)
    return is_random and largest.value <= NOISE_FACTOR * noise.repeat


def _undecided_sentence(report: AuditReport) -> str:
    assert report.noise_floor is not None
    return (
        "It cannot be decided whether moving the image changes the output, because two calls on "
        f"the same images differ by {format_number(report.noise_floor.repeat)} of their size"
    )


def _budget_note(report: AuditReport) -> str:
    return ": the time budget was spent" if report.settings.get("budget_seconds") else ""


def _mode_sentence(metrics: Metrics, report: AuditReport) -> str:
    mode = f"Mode {metrics.movement.mode}"
    if len(metrics.shifts) < 2:
        return f"{mode}: no image was moved{_budget_note(report)}."
    where = f"{mode} ({len(metrics.shifts)} shifts, {format_count(metrics.num_images, 'image')})"
    if _is_explained_by_noise(metrics, report):
        sentence = _undecided_sentence(report)
        return f"{where}: {sentence[0].lower()}{sentence[1:]}."
    effect, detail = _describe_effect(metrics)
    effect += "".join(f" ({note})" for note in detail)
    parts = [f"{where}: moving the image {effect}", *_metric_clauses(metrics)]
    return f"{'; '.join(parts)}."


def _metric_clauses(metrics: Metrics) -> list[str]:
    """Return clauses about the metrics of one mode that `_describe_effect` does not mention.

    There is a clause for the lowest overlap, for the retrieval of features and for the accuracy, if
    the model has these metrics.
    """
    numbers = metrics.numbers
    if len(metrics.shifts) < 2:
        return []
    parts = []
    if "minimum_overlap" in numbers:
        overlap = numbers["minimum_overlap"].value
        parts.append(f"the mean IoU is {format_share(overlap)} % at the worst shift")
    if "retrieval" in numbers:
        parts.append(
            f"{_format_estimate(numbers['retrieval'])} of the shifted images have features that "
            "are nearest to those of their own unshifted version"
        )
    if "accuracy" in numbers:
        accuracy = f"{_format_estimate(numbers['accuracy'])} of the images are classified correctly"
        if not metrics.is_exact:
            by_shift = metrics.curves["accuracy"].values
            worst = metrics.shifts[by_shift.index(min(by_shift))]
            accuracy += (
                f" unshifted, {format_share(min(by_shift))} % at the worst shift, (dy, dx) = "
                f"({', '.join(map(format_step, worst))}), and "
                f"{_format_estimate(numbers['worst_shift_accuracy'])} at every shift"
            )
        parts.append(accuracy)
    return parts


def _layer_sentences(report: AuditReport) -> list[str]:
    layers = report.layers
    if layers is None:
        return []
    sentences = []
    if layers.breaks:
        causes = {}
        for kind, layer in layers.breaks.items():
            causes.setdefault(layer.name, []).append(layer.cause or BREAK_PLACES[kind])
        broken = [f"{name} ({', '.join(words)})" for name, words in causes.items()]
        owners = [
            name.rpartition(".")[0] or "the model itself" for name in layers.absolute_embeddings
        ]
        added = f"; absolute positions are added in {' and '.join(owners)}" if owners else ""
        sentences.append(f"Breaks equivariance first: {', '.join(broken)}{added}.")
    if layers.undecided:
        noise = max(layer.noise for layer in layers.undecided)
        sentences.append(
            f"It cannot be decided whether {layers.undecided[0].name} and the layers after it "
            "break equivariance, because their outputs already differ by up to "
            f"{format_number(noise)} if the same images are passed twice."
        )
    if not sentences:
        reason = f"every error is at most {format_number(layers.threshold)} of its output"
        if report.is_exact:
            reason = "the output of the model is exact"
        sentences.append(f"No layer breaks equivariance: {reason}.")
    return sentences


def explain_layers(layers: LayerFindings | None) -> list[tuple[str, str, str]]:
    """Return statements about the layers that explain why the output of a model changes.

    These are the first layers to break equivariance, the layers that add the most error, and
    layers with absolute positions.

    Returns:
        Three texts for each statement: its predicate, such as "adds the most error", the name of
        the layer as its subject, and details such as the class of the layer, its error and a fix.
    """
    if layers is None:
        return []
    rows = []
    for kind, layer in layers.breaks.items():
        place = f", between {layer.between[0]} and {layer.between[1]}" if layer.between else ""
        cause = f", {layer.cause}" if layer.cause else ""
        fixes = [fix for fix in layers.recommended_fixes if FIXES[fix].kind == kind]
        words = f"{layer.module}{place}{cause}, error {format_number(layer.error)}"
        role = f"is the first layer to break equivariance {BREAK_PLACES[kind]}"
        rows.append((role, layer.name, f"{words}{_fix_command(fixes)}"))
    for layer in layers.undecided[:1]:
        words = (
            f"{layer.kind}, error {format_number(layer.error or 0.0)}, but copies of the same "
            f"images differ by {format_number(layer.noise)}"
        )
        rows.append(("may be the first layer to break equivariance", layer.name, words))
    if not layers.breaks:
        return rows
    for index, layer in enumerate(layers.largest_increases(NUM_LARGEST_INCREASES)):
        role = "also adds error" if index else "adds the most error"
        fixes = [fix for fix in layers.recommended_fixes if layer.name in layers.fixable(fix)]
        words = f"{layer.kind}, adds {format_number(layer.added or 0.0)}{_fix_command(fixes)}"
        rows.append((role, layer.name, words))
    for name in layers.absolute_embeddings:
        embeddings = layers.fixable("positions")
        is_fixable = any(each == name or is_submodule(each, name) for each in embeddings)
        command = _fix_command(["positions"] if is_fixable else [])
        rows.append(
            ("contains absolute positions", name, f"according to its name and shape{command}")
        )
    return rows


def _fix_command(fixes: Sequence[str]) -> str:
    """Return the command that applies the given fixes, as a hint, or "" if there are no fixes."""
    return f"; to fix it: teka fix --fix {','.join(fixes)}" if fixes else ""
