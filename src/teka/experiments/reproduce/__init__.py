"""The experiments of the papers, as studies that come with the library, and the papers' numbers."""

from teka.experiments.reproduce.reproduction import read_reproduction, reproduce

__all__ = ["read_reproduction", "reproduce"]
