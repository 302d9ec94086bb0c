"""What every relative kernel with learned parameters offers."""

from abc import abstractmethod
from typing import ClassVar

from torch import nn

from teka.functional.relative import Relative


class RelativeModule(nn.Module):
    """A relative kernel with learned parameters.

    `has_own_heads` says how a layer of several heads uses it unless told otherwise: in every head, as a factor of the
    content kernel, or in half of the heads, by position alone, while the other half attends by content alone.
    `needs_content` says that it acts inside the content kernel, and so has no heads by position alone; `uses_query`
    that it looks at the query.
    """

    has_own_heads: ClassVar[bool] = False
    needs_content: ClassVar[bool] = False
    uses_query: ClassVar[bool] = False

    @abstractmethod
    def forward(self) -> Relative:
        """The kernel with the present parameters."""
