"""Models made of teka's layers, and functions that save and load trained models."""

from teka.models.causal_lm import CausalLM
from teka.models.conv_performer import ConvPerformer
from teka.models.model_config import ModelConfig
from teka.models.model_file import load, read_config, save
from teka.models.performer import Performer
from teka.models.performer_config import PerformerConfig

__all__ = [
    "CausalLM",
    "ConvPerformer",
    "ModelConfig",
    "Performer",
    "PerformerConfig",
    "load",
    "read_config",
    "save",
]
