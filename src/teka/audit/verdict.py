"""What an audit comes to, in plain sentences."""

from collections.abc import Mapping, Sequence

from teka.audit.caveats import Caveat
from teka.audit.layers.findings import LayerFindings
from teka.audit.measure.distances import NoiseFloor
from teka.audit.page.notation import write_share, write_size, write_step
from teka.audit.procedures import PresetResult
from teka.audit.statistics.estimate import Estimate
from teka.audit.statistics.metrics import Metrics
from teka.audit.statistics.phase import PhaseTable

EXACT = 1e-5
"""An error up to which an output counts as not moved, by rounding of single precision alone."""

PLACES = {"interior": "within the image", "edge": "at the image's edge", "aliasing": "between the cells of its grid"}


def verdict(
    metrics: Sequence[Metrics],
    layers: LayerFindings | None,
    noise: NoiseFloor | None,
    phases: Mapping[str, PhaseTable],
    caveats: Sequence[Caveat],
    presets: Sequence[PresetResult],
) -> tuple[str, ...]:
    """Sentences, the headline first: what moving does, where the model breaks, and what to beware of."""
    sentences = [_headline(metrics, noise, caveats), *(_of_mode(one, noise) for one in metrics)]
    sentences += _of_phases(phases)
    if layers is not None:
        sentences += _of_layers(layers)
    for preset in presets:
        numbers = "; ".join(f"{name} {_share(number)}" for name, number in preset.numbers.items())
        sentences.append(f"By the procedure of {preset.name}: {numbers}.")
    return tuple(sentences)


def _share(estimate: Estimate) -> str:
    return f"{write_share(estimate.value)} % ({write_share(estimate.lower)} to {write_share(estimate.upper)} %)"


def _headline(metrics: Sequence[Metrics], noise: NoiseFloor | None, caveats: Sequence[Caveat]) -> str:
    invalid = [caveat.name for caveat in caveats if caveat.severity == "invalidates"]
    if invalid:
        return f"These numbers do not mean what they seem to: {', '.join(invalid)}."
    moved = [one for one in metrics if len(one.shifts) > 1]
    if not moved:
        return "No image was moved: time was up before."
    if all(_is_exact(one, noise) for one in moved):
        return "Moving the image changes nothing but rounding."
    flips, errors = (
        [one.numbers[name].value for one in moved if name in one.numbers] for name in ("flip_rate", "maximum_error")
    )
    if flips and max(flips) > 0:
        return f"Moving the image changes the answer in {write_share(max(flips))} % of the cases."
    # An output that is 0 has no size to compare with.
    by = f" by up to {write_size(max(errors))} of its size" if errors else ""
    return f"Moving the image changes the output{by}{', and never the answer' if flips else ''}."


def _is_exact(metrics: Metrics, noise: NoiseFloor | None) -> bool:
    floor = EXACT if noise is None else max(EXACT, 10 * noise.repeat)
    return "maximum_error" in metrics.numbers and metrics.numbers["maximum_error"].value <= floor


def _of_mode(metrics: Metrics, noise: NoiseFloor | None) -> str:
    numbers = metrics.numbers
    where = f"Moved in mode {metrics.movement.mode} ({len(metrics.shifts)} shifts, {metrics.num_images} images)"
    if len(metrics.shifts) < 2:
        return f"In mode {metrics.movement.mode} no image was moved: time was up before."
    if _is_exact(metrics, noise):
        error = numbers["maximum_error"].value
        kind = "moves along exactly" if metrics.output == "dense" else "does not change"
        right = f"; {_share(numbers['accuracy'])} of the images are answered correctly" if "accuracy" in numbers else ""
        return f"{where}, the output {kind}: relative error at most {write_size(error)}, which is rounding{right}."
    if "flip_rate" not in numbers:
        by = f" by {write_size(numbers['maximum_error'].value)} of its size" if "maximum_error" in numbers else ""
        return f"{where}, the output changes{by} at the worst shift."
    answer = f"{where}, the answer changes in {_share(numbers['flip_rate'])} of the cases"
    if "minimum_accuracy" not in numbers:
        return f"{answer}."
    curve = metrics.curves["accuracy"]
    worst = metrics.shifts[curve.values.index(min(curve.values))]
    return (
        f"{answer}: {_share(numbers['accuracy'])} of the images are answered correctly unshifted, "
        f"{write_share(numbers['minimum_accuracy'].value)} % at the worst shift, (dy, dx) = {_shift(worst)}, and "
        f"{_share(numbers['worst_shift_accuracy'])} at every shift."
    )


def _shift(shift: Sequence[int | float]) -> str:
    return f"({', '.join(map(write_step, shift))})"


def _of_phases(phases: Mapping[str, PhaseTable]) -> list[str]:
    sentences = []
    for mode, table in phases.items():
        kept = table.values.get("agreement")
        multiples = next((row for row, phase in enumerate(table.phases) if not any(phase)), None)
        if kept is None or multiples is None or len(kept) < 2:
            continue
        others = [(number.value, row) for row, number in enumerate(kept) if row != multiples]
        on, (_, worst) = kept[multiples], min(others)
        # Intervals that overlap leave open whether the phase matters.
        if kept[worst].upper < on.lower:
            stride = " × ".join(map(str, table.stride))
            sentences.append(
                f"In mode {mode} the answer stays in {_share(on)} of the cases at shifts by multiples of {stride} "
                f"pixels, and in {_share(kept[worst])} at those {_shift(table.phases[worst])} beyond them: the model's "
                "grid shows."
            )
    return sentences


def _of_layers(layers: LayerFindings) -> list[str]:
    broken = [f"{one.name} {PLACES[kind]}" for kind, one in layers.breaks.items()]
    if not broken:
        return [f"No layer breaks: every error is at most {write_size(layers.threshold)} of its output."]
    owners = " and ".join(name.rpartition(".")[0] or "the model itself" for name in layers.absolute_embeddings)
    added = f"; absolute positions are added in {owners}" if owners else ""
    return [f"First to break: {', '.join(broken)}{added}."]
