"""The experiments of the papers, as studies that come with the library."""

from teka.experiments.reproduce.reproduction import SCALES, TARGETS, read_reproduction, reproduce, target_levels

__all__ = ["SCALES", "TARGETS", "read_reproduction", "reproduce", "target_levels"]
