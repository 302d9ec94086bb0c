"""Models made of teka's layers."""

from teka.models.performer import Performer

__all__ = ["Performer"]
