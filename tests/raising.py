"""Expected errors of several cases in one test."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def raises_for(case: object, error: type[Exception], match: str) -> Iterator[None]:
    """Expect an error as `pytest.raises` does, and name the case in a failure."""
    try:
        with pytest.raises(error, match=match):
            yield
    except (Exception, pytest.fail.Exception) as failure:
        pytest.fail(f"{case}: {type(failure).__name__}: {failure}")
