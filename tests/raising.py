"""Errors that are asked for case by case, in one test."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def raises_for(case: object, error: type[Exception], match: str) -> Iterator[None]:
    """As `pytest.raises`, but where nothing or something else is raised, the failure names the case."""
    try:
        with pytest.raises(error, match=match):
            yield
    except (Exception, pytest.fail.Exception) as wrong:
        pytest.fail(f"{case}: {type(wrong).__name__}: {wrong}")
