"""Models made of teka's layers, the baselines that they are compared with, and files of trained ones."""

from teka.models.alexnet import AlexNet
from teka.models.degenerate_heads import DegenerateHeads, degenerate_heads, heads_table
from teka.models.linformer import Linformer
from teka.models.model_config import ModelConfig
from teka.models.model_file import PRETRAINED, load, read_config, save
from teka.models.models import MODELS
from teka.models.performer import Performer
from teka.models.resnet18 import ResNet18
from teka.models.routing_transformer import RoutingTransformer
from teka.models.self_attention_network import SelfAttentionNetwork
from teka.models.vgg16 import VGG16

__all__ = [
    "MODELS",
    "PRETRAINED",
    "VGG16",
    "AlexNet",
    "DegenerateHeads",
    "Linformer",
    "ModelConfig",
    "Performer",
    "ResNet18",
    "RoutingTransformer",
    "SelfAttentionNetwork",
    "degenerate_heads",
    "heads_table",
    "load",
    "read_config",
    "save",
]
