import pytest


@pytest.fixture(scope="module", autouse=True)
def contracts_are_kept_as_users_run_them(unchecked_annotations_in_module: None) -> None:
    """Each of these files calls the same functions in hundreds of cases; tests/functional and tests/nn check them."""
