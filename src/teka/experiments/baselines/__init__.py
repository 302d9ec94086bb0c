"""The models that the papers compare with: convolutional networks and transformers of other authors.

Every model takes `image_size`, `in_channels`, `num_classes` and its own options by name.
`teka.models.model_config` lists all of them, so that model files of these models load.
"""

from teka.experiments.baselines.convolutional import VGG16, AlexNet, ResNet18
from teka.experiments.baselines.linformer import Linformer
from teka.experiments.baselines.routing_transformer import RoutingTransformer
from teka.experiments.baselines.self_attention_network import SelfAttentionNetwork

__all__ = [
    "VGG16",
    "AlexNet",
    "Linformer",
    "ResNet18",
    "RoutingTransformer",
    "SelfAttentionNetwork",
]
