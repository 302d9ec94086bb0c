"""How pictures become the images that a model was trained on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from teka.errors import unknown_name, wrong_value

FITS = ("whole", "ink")
# The width in pixels that about 95 of 100 training images of MNIST exceed.
THINNEST_STROKE = 1.6


@dataclass(frozen=True)
class PictureSettings:
    """Whether a picture is taken whole, or the ink on it; a model file keeps it under `pictures`.

    With "whole" the picture is resized to the model's images, its shape not kept, as `teka.data.load` does it. With
    "ink" what stands out from the ground is cut out, made to fit a box with its shape kept, and put in the middle of a
    canvas, bright on a ground of 0; the canvas is then resized to the model's images.

    Args:
        fit: "whole" or "ink".
        canvas: Height and width of the canvas in pixels, for "ink".
        box: Height and width of the box in pixels, for "ink".
        stroke: Least width of the strokes in pixels of the canvas; thinner ones are thickened. 0 leaves them alone.

    Raises:
        ValueError: An unknown fit, sizes that are missing or do not fit, or a stroke below 0.
    """

    fit: str = "whole"
    canvas: tuple[int, int] | None = None
    box: tuple[int, int] | None = None
    stroke: float = 0.0

    def __post_init__(self) -> None:
        if self.fit not in FITS:
            raise unknown_name("fit", self.fit, FITS)
        for argument in ("canvas", "box"):
            size = getattr(self, argument)
            if self.fit == "whole" and size is not None:
                raise wrong_value(argument, size, "None with fit='whole'")
            if self.fit == "ink" and not _is_size(size):
                raise wrong_value(argument, size, "height and width, whole numbers of at least 1, with fit='ink'")
        if self.canvas is not None and self.box is not None and any(map(int.__gt__, self.box, self.canvas)):
            raise wrong_value("box", self.box, f"a box that fits the canvas, {self.canvas}")
        if isinstance(self.stroke, bool) or not isinstance(self.stroke, int | float) or not 0 <= self.stroke < 100:
            raise wrong_value("stroke", self.stroke, "a width in pixels of at least 0 and below 100")

    def to_dict(self) -> dict[str, object]:
        """The fields, ready for JSON; those that "whole" does not have are left out."""
        fields = dataclasses.asdict(self) if self.fit == "ink" else {"fit": self.fit}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}

    @classmethod
    def from_dict(cls, fields: Mapping[str, object]) -> PictureSettings:
        """The settings with these fields, the others by default.

        Raises:
            ValueError: A key that is not a field, or a value that it does not take.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for key in fields:
            if key not in known:
                raise unknown_name("key of pictures", key, known)
        values = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
        return cls(**values)  # pyright: ignore[reportArgumentType]  # __post_init__ checks the types


def settings_for(data: str, image_size: tuple[int, int]) -> PictureSettings:
    """How pictures become images like those of a data set.

    MNIST's authors made the ink fit 20 × 20 pixels and put it in the middle of 28 × 28 by its centre of mass;
    Fashion-MNIST's made it fill the 28 × 28; digits are 8 × 8, and the model's image is their canvas. Pictures of any
    other data set are taken whole.

    Args:
        data: What `teka.data.load` was given.
        image_size: Height and width of the model's images.
    """
    if data == "digits":
        return PictureSettings("ink", image_size, (8, 8))
    if data == "mnist":
        return PictureSettings("ink", (28, 28), (20, 20), THINNEST_STROKE)
    if data == "fashion-mnist":
        return PictureSettings("ink", (28, 28), (28, 28))
    return PictureSettings()


def _is_size(size: object) -> bool:
    return (
        isinstance(size, tuple)
        and len(size) == 2
        and all(isinstance(side, int) and not isinstance(side, bool) and side >= 1 for side in size)
    )
