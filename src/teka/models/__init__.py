"""Models made of teka's layers, and files of trained models."""

from teka.models.causal_lm import CausalLM
from teka.models.model_config import ModelConfig
from teka.models.model_file import load, read_config, save
from teka.models.performer import Performer
from teka.models.performer_config import PerformerConfig

__all__ = ["CausalLM", "ModelConfig", "Performer", "PerformerConfig", "load", "read_config", "save"]
