"""teka in the transformers library: attention implementations, a cache and image classifiers.

Call `register()` first, so that transformers knows the names of the implementations and models.
"""

from teka.errors import require

require("transformers", "teka.integrations.transformers needs", "teka[transformers]")

from teka.integrations.transformers.attention import register_attention  # noqa: E402
from teka.integrations.transformers.cache import StateCache  # noqa: E402
from teka.integrations.transformers.models import (  # noqa: E402
    TekaConfig,
    TekaForImageClassification,
    TekaImageProcessor,
    register_models,
)

__all__ = [
    "StateCache",
    "TekaConfig",
    "TekaForImageClassification",
    "TekaImageProcessor",
    "register",
]


def register() -> None:
    """Register teka's attention implementations and models with transformers.

    >>> import teka.integrations.transformers, transformers
    >>> teka.integrations.transformers.register()
    >>> sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    >>> config = transformers.ViTConfig(image_size=32, patch_size=8, intermediate_size=64, **sizes)
    >>> name = "teka:squared_relu-rotary"
    >>> model = transformers.AutoModel.from_config(config, attn_implementation=name)
    """
    register_attention()
    register_models()
