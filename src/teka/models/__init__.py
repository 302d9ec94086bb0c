"""Models made of teka's layers, the baselines that they are compared with, and files of trained ones."""

from teka.models.convolutional import VGG16, AlexNet, ResNet18
from teka.models.linformer import Linformer
from teka.models.model_config import ModelConfig
from teka.models.model_file import load, read_config, save
from teka.models.performer import Performer
from teka.models.routing_transformer import RoutingTransformer
from teka.models.self_attention_network import SelfAttentionNetwork

__all__ = [
    "VGG16",
    "AlexNet",
    "Linformer",
    "ModelConfig",
    "Performer",
    "ResNet18",
    "RoutingTransformer",
    "SelfAttentionNetwork",
    "load",
    "read_config",
    "save",
]
