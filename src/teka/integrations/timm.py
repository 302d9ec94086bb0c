"""teka models for timm, such as `timm.create_model("teka_tiny_patch16_224")`.

Call `register()` first. The models are vision transformers with linear attention and rotary
positions, without trained weights.
"""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from teka.errors import require, wrong_value
from teka.models import Performer

require("timm", "teka.integrations.timm needs", "teka[timm]")

# pyright: reportMissingImports=false
from timm.models import build_model_with_cfg, is_model, register_model  # noqa: E402
from timm.models._features import feature_take_indices  # noqa: E402

# Width, depth and number of heads, as in DeiT.
SIZES = {"tiny": (192, 12, 3), "small": (384, 12, 6), "base": (768, 12, 12)}
STEMS: dict[str, dict[str, Any]] = {
    "patch16": {"stem": "patch"},
    # Equivariant to every whole-pixel shift of a periodic image.
    "polyphase16": {"stem": "polyphase", "periodic": True},
}
PRETRAINED_CONFIG = {
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
    "input_size": (3, 224, 224),
    "num_classes": 1000,
}


class TimmPerformer(Performer):
    """`teka.models.Performer` with the interface of timm models.

    >>> import timm, torch, teka.integrations.timm
    >>> teka.integrations.timm.register()
    >>> model = timm.create_model("teka_tiny_patch16_224", num_classes=10)
    >>> model.forward_features(torch.rand(1, 3, 224, 224)).shape
    torch.Size([1, 196, 192])

    Args:
        img_size: Pixels along each axis, a multiple of 16.
        in_chans: Number of channels of the images.
        num_classes: Number of logits; 0 for pooled features.
        drop_rate: Dropout rate in attention and MLPs.
        global_pool: Input of the head: the mean of the tokens, "avg", or each token, "".
        options: Keyword arguments of `Performer`, such as dim, depth and heads.
    """

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        drop_rate: float = 0.0,
        global_pool: str = "avg",
        **options: Any,
    ) -> None:
        image_size = img_size if isinstance(img_size, int) else tuple(img_size)
        super().__init__(
            image_size,
            in_chans,
            max(num_classes, 1),
            patch_size=16,
            pool="mean",
            dropout=drop_rate,
            **options,
        )
        self.num_features = self.head_hidden_size = self.norm.normalized_shape[0]
        self.feature_info = [
            {
                "num_chs": self.num_features,
                "reduction": self.patch_size,
                "module": f"blocks.{index}",
            }
            for index in range(len(self.blocks))
        ]
        self.reset_classifier(num_classes, global_pool)

    def get_classifier(self) -> nn.Module:
        """Return the classification head."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the classification head.

        Args:
            num_classes: Number of logits; 0 removes the head.
            global_pool: "avg", "", or None to keep the pooling.
        """
        if global_pool not in (None, "avg", ""):
            raise wrong_value("global_pool", global_pool, "'avg', '' or None")
        self.num_classes = num_classes
        self.global_pool = self.global_pool if global_pool is None else global_pool
        head = nn.Identity() if num_classes == 0 else nn.Linear(self.num_features, num_classes)
        self.head = head.to(self.norm.weight)

    def forward_features(
        self, x: Float[Tensor, "batch channels *sides"]
    ) -> Float[Tensor, "batch tokens dim"]:
        """Return the tokens after the last block and the final normalization."""
        return self.encode(x)[0]

    def forward_head(
        self, x: Float[Tensor, "batch tokens dim"], pre_logits: bool = False
    ) -> Float[Tensor, "batch *tokens_outputs"]:
        """Return the class logits for the tokens `x`, or with `pre_logits` the pooled tokens."""
        pooled = x.mean(dim=1) if self.global_pool else x
        return pooled if pre_logits else self.head(pooled)

    def forward(
        self, images: Float[Tensor, "batch channels *sides"]
    ) -> Float[Tensor, "batch *tokens_outputs"]:
        """Return the class logits of images."""
        return self.forward_head(self.forward_features(images))

    def forward_intermediates(
        self,
        x: Float[Tensor, "batch channels *sides"],
        indices: int | Sequence[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Return the outputs of selected transformer blocks, with the arguments of timm models.

        By default, return the final tokens and a list with a feature map for each block.

        Args:
            x: Images.
            indices: Number of last blocks or indices of blocks, by default all blocks.
            norm: Apply the final normalization to each output.
            stop_early: Has no effect. All blocks are computed.
            output_fmt: "NCHW" for feature maps, or "NLC" for tokens.
            intermediates_only: Return only the list, without the final tokens.
        """
        blocks, _ = feature_take_indices(len(self.blocks), indices)
        outputs: list[Tensor] = []

        def append_output(block: nn.Module, inputs: tuple, tokens: Tensor) -> None:
            tokens = self.norm(tokens) if norm else tokens
            outputs.append(self.grid.unflatten(tokens) if output_fmt == "NCHW" else tokens)

        hooks = [
            self.blocks[index].register_forward_hook(append_output) for index in sorted(blocks)
        ]
        try:
            last = self.forward_features(x)
        finally:
            for hook in hooks:
                hook.remove()
        return outputs if intermediates_only else (last, outputs)


def register() -> None:
    """Register teka's models with timm, so that `timm.create_model` finds them.

    The names have the form "teka_SIZE_STEM_224", such as "teka_tiny_patch16_224". The sizes are
    "tiny", "small" and "base". The stems are "patch16" and "polyphase16".
    """
    for size, (dim, depth, heads) in SIZES.items():
        for stem, stem_options in STEMS.items():
            name = f"teka_{size}_{stem}_224"
            if not is_model(name):
                _register_model(name, {"dim": dim, "depth": depth, "heads": heads, **stem_options})


def _register_model(name: str, options: dict[str, Any]) -> None:
    def create_model(
        pretrained: bool = False, pretrained_cfg: Any = None, **kwargs: Any
    ) -> nn.Module:
        return build_model_with_cfg(
            TimmPerformer,
            name,
            pretrained,
            pretrained_cfg=pretrained_cfg or PRETRAINED_CONFIG,
            feature_cfg={"out_indices": 3, "feature_cls": "getter"},
            **{**options, **kwargs},
        )

    create_model.__name__ = name
    create_model.__module__ = __name__
    register_model(create_model)
