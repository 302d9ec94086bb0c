"""The traps of a flat curve that says nothing: a model that answers always the same, images all of one class."""

import torch

from teka.audit.measure.responses import Responses
from teka.audit.traps.trap import Trap
from teka.errors import wrong_value

SHARE = 0.9  # of all answers; so many alike are few enough of another to hide any effect of shifts


def collapse(responses: Responses) -> tuple[Trap, ...]:
    """Whether nearly all answers are one class, and whether all images are.

    A model that knows nothing of positions answers "1" to nearly every narrow thing: on the 854 ones of Figure 1 of
    Horn et al. 2021 that is a flat 99.4 %, where it is right of less than half of all images.

    Args:
        responses: What the model answered.

    Raises:
        ValueError: Responses that are no classifier's.
    """
    if responses.predictions is None:
        raise wrong_value("responses.output", responses.output, "'logits'")
    answers = responses.predictions[responses.evaluated]
    found, counts = answers.unique(return_counts=True)
    top, share = int(found[counts.argmax()]), float(counts.max() / counts.sum())
    labels = responses.labels
    classes = None if labels is None else labels.unique()
    traps = []
    if classes is not None and len(classes) == 1:
        message = (
            f"All {responses.num_images} images are of class {int(classes[0])}. A model that always answers "
            f"{int(classes[0])} is right at every shift; look at all classes beside this."
        )
        traps.append(Trap("one class", "limits", message))
    if share >= SHARE and (classes is None or len(classes) > 1):
        kind = "constant predictor" if len(found) == 1 else "collapsed predictions"
        right = ""
        if labels is not None:
            truth = float((labels == top).double().mean())
            right = f", and {truth:.1%} of the images are of that class"
        message = (
            f"{share:.1%} of all answers are class {top}{right}. Answers that never change are consistent at every "
            "shift, whatever the model sees."
        )
        traps.append(Trap(kind, "invalidates", message))
    return tuple(traps)


def chance(responses: Responses) -> tuple[Trap, ...]:
    """Whether a classifier is no better than the commonest class.

    Args:
        responses: What the model answered.
    """
    labels, correct = responses.labels, responses.correct
    if labels is None or correct is None:
        return ()
    commonest = float(torch.bincount(labels).max() / len(labels))
    accuracy = float(correct[responses.zero].double().mean())
    # Two standard errors, so that a model at chance is not missed by luck.
    if accuracy > commonest + 2 * (commonest * (1 - commonest) / len(labels)) ** 0.5 or commonest == 1:
        return ()
    message = (
        f"Unmoved, {accuracy:.1%} of the images are answered rightly, where always answering the commonest class gets "
        f"{commonest:.1%}. Is the model trained on these classes, and are the images prepared as in its training?"
    )
    return (Trap("no better than chance", "invalidates", message),)
