"""A JSON object that knows where it stands, so that every error about it names the file and the key."""

from pathlib import Path

from teka.errors import wrong_value


def check_accuracy(value: object, where: str) -> float:
    """An accuracy from 0 to 1.

    Args:
        value: What stands in the file.
        where: File and key, for the error.

    Raises:
        ValueError: Not a number from 0 to 1.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise wrong_value(where, value, "an accuracy from 0 to 1")
    return float(value)


class Record:
    """One JSON object of a file.

    Each method reads one key, and raises a ValueError that names file and key if what stands there does not fit.

    Args:
        value: The object as parsed.
        path: The file.
        key: The key under which the object stands, with dots between levels; empty for the whole file.

    Raises:
        ValueError: The value is not a JSON object.
    """

    def __init__(self, value: object, path: Path, key: str = "") -> None:
        self.path, self.key = path, key
        if not isinstance(value, dict):
            raise wrong_value(f"{path}: {key}" if key else str(path), value, "a JSON object")
        self.values: dict[str, object] = value

    def where(self, key: str) -> str:
        """File and full key, for errors."""
        return f"{self.path}: {self.key}.{key}" if self.key else f"{self.path}: {key}"

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.values.get(key) is not None

    def get(self, key: str) -> object:
        """Any value."""
        if key not in self.values:
            raise ValueError(
                f"{self.where(key)} is missing, expected among {', '.join(map(repr, self.values)) or 'no keys'}"
            )
        return self.values[key]

    def record(self, key: str) -> "Record":
        """A JSON object."""
        return Record(self.get(key), self.path, f"{self.key}.{key}" if self.key else key)

    def records(self, key: str) -> "list[Record]":
        """A list of one JSON object or more."""
        values = self.get(key)
        if not isinstance(values, list) or not values:
            raise wrong_value(self.where(key), values, "a list of one object or more")
        return [Record(value, self.path, f"{key}[{index}]") for index, value in enumerate(values)]

    def text(self, key: str) -> str:
        """A text that is not empty."""
        value = self.get(key)
        if not isinstance(value, str) or not value.strip():
            raise wrong_value(self.where(key), value, "a text that is not empty")
        return value

    def whole(self, key: str) -> int:
        """A whole number of at least 0."""
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise wrong_value(self.where(key), value, "a whole number of at least 0")
        return value

    def number(self, key: str) -> float:
        """A finite number of at least 0."""
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise wrong_value(self.where(key), value, "a finite number of at least 0")
        return float(value)

    def accuracy(self, key: str) -> float:
        """An accuracy from 0 to 1."""
        return check_accuracy(self.get(key), self.where(key))

    def interval(self, key: str) -> tuple[float, float]:
        """Two accuracies [low, high]."""
        value, where = self.get(key), self.where(key)
        if not isinstance(value, list) or len(value) != 2:
            raise wrong_value(where, value, "[low, high]")
        low, high = check_accuracy(value[0], where), check_accuracy(value[1], where)
        if low > high:
            raise wrong_value(where, value, "[low, high] with low ≤ high")
        return low, high

    def whole_keys(self) -> dict[str, int]:
        """The keys, each of which is a whole number of at least 0, with their numbers."""
        for key in self.values:
            if not (key.isascii() and key.isdecimal()) or str(int(key)) != key:
                raise wrong_value(self.where(key), key, "a whole number of at least 0 as key")
        return {key: int(key) for key in self.values}

    def shifts(self) -> dict[str, int]:
        """The keys, each of which is a shift in whole pixels, with their numbers."""
        for key in self.values:
            digits = key.removeprefix("-")
            if not (digits.isascii() and digits.isdecimal()) or str(int(key)) != key:
                raise wrong_value(self.where(key), key, "a shift in whole pixels as key, such as '-4'")
        return {key: int(key) for key in self.values}
