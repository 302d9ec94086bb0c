import pytest

from teka.audit.traps import few_images


def test_fifty_images_are_few():
    (trap,) = few_images(50, 0.95)
    assert trap.severity == "limits"
    assert "from 78.6% to 95.7%" in trap.message


@pytest.mark.parametrize(("images", "found"), [(100, 1), (150, 0), (10_000, 0)])
def test_the_interval_of_five_points_decides(images: int, found: int):
    assert len(few_images(images, 0.95)) == found
