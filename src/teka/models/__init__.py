"""Models made of teka's layers, and files of trained models."""

from teka.models.model_config import ModelConfig
from teka.models.model_file import load, read_config, save
from teka.models.performer import Performer

__all__ = ["ModelConfig", "Performer", "load", "read_config", "save"]
