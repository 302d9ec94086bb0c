"""Description of how a fix changes the accuracy of a model."""

from collections.abc import Sequence

from teka.audit.page.metric_formatting import format_difference, format_difference_interval
from teka.audit.statistics.comparison import Pair
from teka.reporting.formatting import format_p_value, join_words


def describe_accuracy_cost(pairs: Sequence[Pair]) -> str:
    """Describe how a fix changes the accuracy of a model on unshifted images.

    Modes with the same result share a sentence.

    Args:
        pairs: Comparisons of the model before the change with the one after it, for each mode.
    """
    modes_of: dict[str, list[str]] = {}
    for pair in pairs:
        before = pair.comparison.numbers.get("accuracy")
        if before is None:
            continue
        change = before.negate()
        if change.p_value > 1 - change.confidence:
            sentence = "Its accuracy on unshifted images does not change significantly"
        else:
            verb = "loses" if change.value < 0 else "gains"
            sentence = f"It {verb} accuracy on unshifted images"
        points = format_difference("accuracy", change.value)
        ends = f"{format_difference_interval('accuracy', change)}, {format_p_value(change.p_value)}"
        sentence = f"{sentence}: {points} points ({ends})"
        modes_of.setdefault(sentence, []).append(pair.comparison.movement.mode)
    if not modes_of:
        return "The effect on the accuracy is unknown, because the images have no labels."
    if len(modes_of) == 1:
        return f"{next(iter(modes_of))}."
    return " ".join(f"{text} in mode {join_words(modes)}." for text, modes in modes_of.items())
