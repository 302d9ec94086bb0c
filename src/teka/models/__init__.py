"""Models made of teka's layers, the baselines that they are compared with, and files of trained ones.

Every model takes `image_size`, height and width in pixels or one number for both, `in_channels`, the channels of its
images, `num_classes`, the number of its logits, and options of its own by name. Sizes that do not fit, unknown names
and numbers out of range are a ValueError, as is an image too small for the poolings of a model.
"""

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
