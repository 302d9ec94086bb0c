import pytest


@pytest.fixture(scope="module", autouse=True)
def without_annotation_checks(unchecked_annotations_in_module: None) -> None:
    """Switch off the checks of annotations, which tests/functional and tests/nn run already."""
