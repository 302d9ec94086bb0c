"""Matching of a data set's classes with the classes of a model."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence

from jaxtyping import Int
from torch import Tensor

from teka.audit.adapters.loaded_model import LoadedModel
from teka.audit.caveats import Caveat
from teka.data.custom_images import class_numbers
from teka.errors import wrong_value

_WORDNET_ID = re.compile(r"n[0-9]{8}")
_NUM_NAMED = 3  # names that a message lists


def match_labels(
    labels: Int[Tensor, " images"],
    num_classes: int,
    class_names: Sequence[str] | None,
    subject: LoadedModel,
) -> tuple[Int[Tensor, " images"], list[Caveat]]:
    """Return the labels as indices of the model's classes, and a caveat if not matched by name.

    Names are compared without regard to case, surrounding spaces, and underscores in place of
    spaces. A name with synonyms, such as "tench, Tinca tinca", matches each synonym. Without a
    match by name:

    - Folders with integer names: the number is the class of the model. Folders 1 … K are classes
      0 … K − 1 of a model with K classes.
    - WordNet ids, if the model has the same number of classes: in sorted order, as in ImageNet.
    - Only one of the two has names: class k of the data is class k of the model.

    Args:
        labels: Classes of the images in the data set.
        num_classes: Number of classes of the data set.
        class_names: Names of these classes, if they have any.
        subject: The model.

    Raises:
        ValueError: Both have names that do not match one to one, or different numbers of classes.
    """
    names, known = class_names, subject.class_names
    num_known = subject.num_classes if known is None else len(known)
    candidates = [] if known is None or names is None else _candidates(names, known)
    if any(candidates):
        _check_one_to_one(candidates, names or (), known or (), subject)
        return labels.new_tensor([indices[0] for indices in candidates])[labels], []
    numbers = None if names is None else class_numbers(names)
    if numbers is not None:
        return _match_numbers(labels, numbers, num_known, subject)
    is_wordnet = (
        names is not None and num_known == len(names) and all(map(_WORDNET_ID.fullmatch, names))
    )
    if candidates and not is_wordnet:
        _check_one_to_one(candidates, names or (), known or (), subject)
    if num_known not in (None, num_classes):
        expected = (
            f"{num_known}, the classes of {subject.name}, "
            f"or names that are among its own; {_REMEDY}"
        )
        raise wrong_value("the number of the data's classes", num_classes, expected)
    if (names is None) == (known is None) and not is_wordnet:
        return labels, []
    if is_wordnet:
        why = f"The class names of the data are WordNet ids, which {subject.name} does not use"
    elif names is None:
        why = "The data have no class names"
    else:
        why = f"{subject.name} has no class names"
    first = (
        ""
        if names is None
        else f" In the data, {_listed(f'{k} is {name!r}' for k, name in enumerate(names))}."
    )
    return labels, [
        _caveat(f"{why}: class k of the data was taken for class k of the model.{first}")
    ]


_REMEDY = "rename the classes, or leave the labels out with --ignore-labels"


def _match_numbers(
    labels: Int[Tensor, " images"],
    numbers: Sequence[int],
    num_known: int | None,
    subject: LoadedModel,
) -> tuple[Int[Tensor, " images"], list[Caveat]]:
    count = len(numbers)
    if list(numbers) == list(range(1, count + 1)) and num_known in (None, count):
        return labels, [
            _caveat(
                f"Folders 1 to {count} were taken for classes 0 to {count - 1} of {subject.name}."
            )
        ]
    if min(numbers) < 0 or (num_known is not None and max(numbers) >= num_known):
        range_of_numbers = f"from {min(numbers)} to {max(numbers)}"
        limit = (
            "at least 0"
            if num_known is None
            else f"classes of {subject.name}, from 0 to {num_known - 1}"
        )
        raise wrong_value(
            "the numbers that the folders are named by", range_of_numbers, f"{limit}; {_REMEDY}"
        )
    caveats = []
    as_words = sorted(map(str, numbers))
    if (
        list(numbers) != list(range(count))
        or as_words != list(map(str, numbers))
        or subject.class_names is not None
    ):
        message = (
            "The folders are named by numbers, "
            f"and folder k was taken for class k of {subject.name}."
        )
        if as_words != list(map(str, numbers)):
            place = next(
                place for place, number in enumerate(numbers) if as_words[place] != str(number)
            )
            message += (
                " If the model was trained with torchvision's ImageFolder, which sorts names as "
                f"words, its class {place} is folder {as_words[place]}, and the accuracy here is "
                "wrong."
            )
        caveats = [_caveat(message)]
    return labels.new_tensor(list(numbers))[labels], caveats


def _candidates(names: Sequence[str], known: Sequence[str]) -> list[list[int]]:
    """Return for each name the indices of the known names that match it best."""
    tables = []
    for keys_of in _KEYS:
        table: dict[str, list[int]] = {}
        for index, name in enumerate(known):
            for key in keys_of(name):
                table.setdefault(key, []).append(index)
        tables.append((keys_of, table))
    candidates = []
    for name in names:
        found: list[int] = []
        for keys_of, table in tables:
            found = found or sorted(
                {index for key in keys_of(name) for index in table.get(key, ())}
            )
        candidates.append(found)
    return candidates


def _normalized(name: str) -> str:
    # A file system may store accents as separate characters.
    return " ".join(unicodedata.normalize("NFKC", name).casefold().replace("_", " ").split())


# From the strictest comparison to the most lenient.
_KEYS: tuple[Callable[[str], set[str]], ...] = (
    lambda name: {name},
    lambda name: {_normalized(name)},
    lambda name: {_normalized(synonym) for synonym in name.split(",") if synonym.strip()},
)


def _check_one_to_one(
    candidates: Sequence[Sequence[int]],
    names: Sequence[str],
    known: Sequence[str],
    subject: LoadedModel,
) -> None:
    unmatched = [name for name, indices in zip(names, candidates, strict=True) if not indices]
    if unmatched:
        raise ValueError(
            f"the class names of the data must be among those of {subject.name}, "
            f"{_listed(map(repr, known))}, got {_listed(map(repr, unmatched))}; {_REMEDY}"
        )
    owners: dict[int, str] = {}
    for name, indices in zip(names, candidates, strict=True):
        if len(indices) > 1:
            several = " and ".join(f"{known[index]!r} ({index})" for index in indices[:2])
            raise ValueError(
                f"the class names of the data must match one class of {subject.name} each, "
                f"got {name!r}, which matches {several}; {_REMEDY}"
            )
        if (other := owners.setdefault(indices[0], name)) != name:
            raise ValueError(
                f"the class names of the data must match different classes of {subject.name}, "
                f"got {other!r} and {name!r}, which both match {known[indices[0]]!r}; {_REMEDY}"
            )


def _caveat(message: str) -> Caveat:
    return Caveat(
        "labels matched by number",
        "note",
        f"{message} The accuracy is right only if that is the case.",
    )


def _listed(words: Iterable[str]) -> str:
    listed = list(words)
    return ", ".join(listed[:_NUM_NAMED]) + (", …" if len(listed) > _NUM_NAMED else "")
