"""The models that the papers compare with: convolutional networks and transformers of other authors.

Every model takes `image_size`, `in_channels`, `num_classes` and its own options by name.
`teka.models.model_config` lists all of them, so that model files of these models load.
"""

from reproduction.baselines.convolutional import VGG16, AlexNet, ResNet18
from reproduction.baselines.linformer import Linformer
from reproduction.baselines.routing_transformer import RoutingTransformer
from reproduction.baselines.self_attention_network import SelfAttentionNetwork

__all__ = [
    "VGG16",
    "AlexNet",
    "Linformer",
    "ResNet18",
    "RoutingTransformer",
    "SelfAttentionNetwork",
]
