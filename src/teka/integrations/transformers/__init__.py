"""teka in transformers: attention by name, a cache that does not grow, and models as `AutoModel` knows them.

`register()` comes first. Sizes that do not fit, unknown names and masks that no sum over keys keeps are ValueErrors.
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
    """Make `attn_implementation="teka"` and its variants, and teka's own models, known to transformers.

    >>> import teka.integrations.transformers, transformers
    >>> teka.integrations.transformers.register()
    >>> sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    >>> config = transformers.ViTConfig(image_size=32, patch_size=8, **sizes)
    >>> model = transformers.AutoModel.from_config(config, attn_implementation="teka:squared_relu-rotary")
    """
    register_attention()
    register_models()
