"""The experiments of the papers, as studies that come with the library, and the papers' numbers."""

from reproduction.horn2021.reproduction import read_reproduction, reproduce

__all__ = ["read_reproduction", "reproduce"]
