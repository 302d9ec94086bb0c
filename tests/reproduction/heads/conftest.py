import pytest


@pytest.fixture(scope="module", autouse=True)
def few_measurements(request):
    """Draw few initial heads, to save time."""
    with pytest.MonkeyPatch.context() as patched:
        if request.path.name != "test_measure.py":
            patched.setattr("reproduction.heads.attention_patterns.CHANCE_DRAWS", 8)
        yield
