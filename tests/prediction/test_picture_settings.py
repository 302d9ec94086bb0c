from typing import Any

import pytest

from teka.prediction import PictureSettings
from teka.prediction.picture_settings import settings_for


@pytest.mark.parametrize("data", ["digits", "mnist", "fashion-mnist", "cifar10", "pictures"])
def test_the_settings_of_a_data_set_are_read_back_from_json(data: str):
    settings = settings_for(data, (16, 20))
    assert PictureSettings.from_dict(settings.to_dict()) == settings
    assert settings.fit == ("whole" if data in ("cifar10", "pictures") else "ink")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"fit": "inc"}, "fit is 'inc', .*did you mean 'ink'"),
        ({"fit": "ink", "canvas": [28, 28]}, "box is None"),
        ({"fit": "ink", "canvas": [28, 28], "box": [20]}, "box is"),
        ({"fit": "ink", "canvas": [28, 28], "box": [20, 29]}, "box is .* fits the canvas"),
        ({"fit": "ink", "canvas": [28, 28], "box": [20, 20], "stroke": -1}, "stroke is -1"),
        ({"fit": "whole", "box": [20, 20]}, "box is .* None with fit='whole'"),
        ({"fitt": "ink"}, "key of pictures is 'fitt'"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_an_error(fields: dict[str, Any], message: str, as_users_run_it: None):
    with pytest.raises(ValueError, match=message):
        PictureSettings.from_dict(fields)
