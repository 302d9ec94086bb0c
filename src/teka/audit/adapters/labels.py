"""Conversion of the labels of a data set to the classes of a model."""

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence

from jaxtyping import Int
from torch import Tensor

from teka.audit.adapters.loaded_model import LoadedModel
from teka.audit.caveats import Caveat
from teka.data.custom_images import parse_class_numbers
from teka.errors import wrong_argument, wrong_value

Labels = Int[Tensor, " images"]
_WORDNET_ID = re.compile(r"n[0-9]{8}")
_NAMES = "the class names of the data"
_NUM_NAMED = 3  # names that a message lists
_HINT = "Rename the classes, or use --ignore-labels to skip the accuracy."


def match_labels(
    labels: Labels, num_classes: int, class_names: Sequence[str] | None, model: LoadedModel
) -> tuple[Labels, list[Caveat]]:
    """Convert the labels of a data set to the class indices of a model.

    Classes with the same name are matched. The comparison ignores case and surrounding spaces, and
    treats underscores as spaces. A name that lists synonyms, such as "tench, Tinca tinca", matches
    each of them. If no names match, classes are matched by number:

    - Folders that are named by integers stand for these class indices of the model. However,
      folders 1 … K stand for classes 0 … K − 1 of a model with K classes.
    - If the names of the data are WordNet ids, and the model has the same number of classes, the
      id at index k in sorted order is class k of the model, as in ImageNet.
    - If only the data or only the model has names, class k of the data is class k of the model.

    Args:
        labels: Classes of the images in the data set.
        num_classes: Number of classes of the data set.
        class_names: Names of these classes, if they have any.
        model: The model.

    Returns:
        The labels, and a caveat if classes were matched by number.

    Raises:
        ValueError: Both have names that do not match one to one, or different numbers of classes.
    """
    names = class_names or ()
    model_names = model.class_names or ()
    num_known = len(model_names) or model.num_classes
    numbers = parse_class_numbers(names)
    is_wordnet = num_known == len(names) > 0 and all(map(_WORDNET_ID.fullmatch, names))
    matches = _find_matching_classes(names, model_names)
    if any(matches) or (names and model_names and numbers is None and not is_wordnet):
        indices = _one_to_one_matches(matches, names, model_names, model.name)
        return labels.new_tensor(indices)[labels], []
    if numbers is not None:
        return _match_numbers(labels, numbers, num_known, model)
    if num_known not in (None, num_classes):
        expected = f"{num_known}, the number of classes of {model.name}"
        raise wrong_value("the number of the data's classes", num_classes, expected, _HINT)
    if not is_wordnet and bool(names) == bool(model_names):
        return labels, []
    reason = "the data have no class names"
    if is_wordnet:
        reason = "the class names of the data are WordNet ids, but those of the model are not"
    elif names:
        reason = "the model has no class names"
    message = f"Class k of the data was assumed to be class k of the model, because {reason}."
    if names:
        first = _list_some(f"{index} is {name!r}" for index, name in enumerate(names))
        message += f" In the data, {first}."
    return labels, [_caveat(message)]


def _match_numbers(
    labels: Labels, numbers: list[int], num_known: int | None, model: LoadedModel
) -> tuple[Labels, list[Caveat]]:
    count = len(numbers)
    if numbers == list(range(1, count + 1)) and num_known in (None, count):
        message = f"Folders 1 to {count} were used as classes 0 to {count - 1} of the model."
        return labels, [_caveat(message)]
    if min(numbers) < 0 or max(numbers) >= (num_known or math.inf):
        limit = f"classes of {model.name}, from 0 to {num_known - 1}" if num_known else "at least 0"
        given = f"from {min(numbers)} to {max(numbers)}"
        raise wrong_value("the numbers that the folders are named by", given, limit, _HINT)
    message = "The folders are named by numbers, so folder k was used as class k of the model."
    is_sorted_as_text = numbers == sorted(numbers, key=str)
    if not is_sorted_as_text:
        message += (
            " The accuracy is wrong if the model was trained with torchvision's ImageFolder, which "
            "sorts folder names as text (0, 1, 10, 2)."
        )
    indices = labels.new_tensor(numbers)[labels]
    if numbers == list(range(count)) and is_sorted_as_text and model.class_names is None:
        return indices, []
    return indices, [_caveat(message)]


def _normalize(name: str) -> str:
    # A file system may store accents as separate characters.
    return " ".join(unicodedata.normalize("NFKC", name).casefold().replace("_", " ").split())


# Functions from a class name to the keys by which it is compared, the strictest comparison first.
_KEYS = (
    lambda name: {name},
    lambda name: {_normalize(name)},
    lambda name: {_normalize(synonym) for synonym in name.split(",") if synonym.strip()},
)


def _find_matching_classes(names: Sequence[str], model_names: Sequence[str]) -> list[list[int]]:
    """Return, for each class of the data, the indices of the model's classes with the same name.

    Names are compared exactly first, then without regard to case, and finally by their synonyms.
    """
    matches = [[] for _ in names]
    for keys_of in _KEYS:
        table = {}
        for index, name in enumerate(model_names):
            for key in keys_of(name):
                table.setdefault(key, []).append(index)
        for index, name in enumerate(names):
            same = {match for key in keys_of(name) for match in table.get(key, ())}
            matches[index] = matches[index] or sorted(same)
    return matches


def _one_to_one_matches(
    matches: Sequence[Sequence[int]], names: Sequence[str], model_names: Sequence[str], model: str
) -> list[int]:
    """Return the only matching class of the model for each class of the data.

    Args:
        matches: Indices of the matching classes of the model, for each class of the data.
        names: Names of the classes of the data.
        model_names: Names of the classes of the model.
        model: Name of the model for error messages.

    Raises:
        ValueError: A class of the data matches no class or several classes of the model, or two
            classes of the data match the same class.
    """
    problems = []
    for name, indices in zip(names, matches, strict=True):
        several = " and ".join(f"{model_names[index]!r} ({index})" for index in indices[:2])
        if len(indices) != 1:
            problems.append(f"{name!r}, which matches {several}" if several else repr(name))
    if problems:
        expected = f"class names of {model} ({_list_some(map(repr, model_names))})"
        raise wrong_argument(_NAMES, _list_some(problems), expected, _HINT)
    owners = {}
    for name, (index,) in zip(names, matches, strict=True):
        if index in owners:
            both = f"{owners[index]!r} and {name!r}, which both match {model_names[index]!r}"
            raise wrong_argument(_NAMES, both, f"different classes of {model}", _HINT)
        owners[index] = name
    return list(owners)


def _caveat(message: str) -> Caveat:
    message = f"{message} The accuracy is right only if that is the case."
    return Caveat("labels matched by number", "note", message)


def _list_some(words: Iterable[str]) -> str:
    listed = list(words)
    return ", ".join(listed[:_NUM_NAMED]) + (", …" if len(listed) > _NUM_NAMED else "")
