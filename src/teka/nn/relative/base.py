"""What every relative kernel with learned parameters offers."""

from abc import abstractmethod
from typing import ClassVar

from torch import nn

from teka.functional.relative import Relative


class RelativeModule(nn.Module):
    """A relative kernel with learned parameters.

    `has_own_heads` says how a layer of several heads uses it: in every head, as a factor of the content kernel, or in
    half of the heads, by position alone, while the other half attends by content alone.
    """

    has_own_heads: ClassVar[bool] = False
    uses_query: ClassVar[bool] = False

    @abstractmethod
    def forward(self) -> Relative:
        """The kernel with the present parameters."""
