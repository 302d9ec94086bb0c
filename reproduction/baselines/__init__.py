"""Baseline models: convolutional networks and transformers from other papers.

Every model takes `image_size`, `in_channels`, `num_classes` and its own options. Importing this
package registers the models, so that they can be trained by name, as in `--model resnet18`.
"""

from reproduction.baselines.convolutional import VGG16, AlexNet, ResNet18
from reproduction.baselines.linformer import Linformer
from reproduction.baselines.routing_transformer import RoutingTransformer
from reproduction.baselines.self_attention_network import SelfAttentionNetwork
from teka.models.model_config import register_model

__all__ = [
    "VGG16",
    "AlexNet",
    "Linformer",
    "ResNet18",
    "RoutingTransformer",
    "SelfAttentionNetwork",
]

register_model("alexnet", AlexNet)
register_model("vgg16", VGG16)
register_model("resnet18", ResNet18)
register_model("linformer", Linformer)
register_model("routing_transformer", RoutingTransformer)
register_model("self_attention", SelfAttentionNetwork)
