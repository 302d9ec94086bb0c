"""The rotation kernel (strategy 1) in the paper's joint form, with learned frequencies and weights."""

from typing import ClassVar

from teka.functional import relative
from teka.nn.relative.rotation import Rotation


class RotationJoint(Rotation):
    """`teka.functional.RotationJoint` with learned ω, α and β: equivariant in expectation only.

    Arguments and initial values are those of `Rotation`.
    """

    needs_content: ClassVar[bool] = True

    def forward(self) -> relative.RotationJoint:
        """The kernel with the present parameters."""
        return relative.RotationJoint(self.frequency, self.cosine_weight, self.sine_weight, self.scale)

    @property
    def num_position_features(self) -> int:
        """Length 2 · axes · scales of the positions' features, which the projection must have room for."""
        return 2 * self.cosine_weight.shape[1] * self.cosine_weight.shape[2]
