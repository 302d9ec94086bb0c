"""The models by name."""

from torch import nn

from teka.models.alexnet import AlexNet
from teka.models.linformer import Linformer
from teka.models.performer import Performer
from teka.models.resnet18 import ResNet18
from teka.models.routing_transformer import RoutingTransformer
from teka.models.self_attention_network import SelfAttentionNetwork
from teka.models.vgg16 import VGG16

# Every model takes (image_size, in_channels, num_classes) and its own options by name.
MODELS: dict[str, type[nn.Module]] = {
    "performer": Performer,
    "alexnet": AlexNet,
    "vgg16": VGG16,
    "resnet18": ResNet18,
    "linformer": Linformer,
    "routing_transformer": RoutingTransformer,
    "self_attention": SelfAttentionNetwork,
}
