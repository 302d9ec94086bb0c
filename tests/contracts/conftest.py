import pytest


@pytest.fixture(scope="module", autouse=True)
def contracts_are_kept_as_users_run_them(as_users_run_this_file: None) -> None:
    """Each of these files calls the same functions in hundreds of cases; tests/functional and tests/nn check them."""
