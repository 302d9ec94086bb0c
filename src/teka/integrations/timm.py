"""teka's models in timm: `timm.create_model("teka_tiny_patch16_224")`, its heads and its features.

`register()` comes first; then `timm.create_model`, `timm.list_models("teka*")` and timm's own scripts know the models.
They are `teka.models.Performer` with rotary positions, at linear cost in the tokens; none has trained weights.
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

# Width, blocks and heads by size, those of DeiT; and by kind what makes tokens of patches of 16 pixels.
SIZES = {"tiny": (192, 12, 3), "small": (384, 12, 6), "base": (768, 12, 12)}
KINDS: dict[str, dict[str, Any]] = {
    "patch16": {"stem": "patch"},
    # Exact under every whole shift where the image's edges meet.
    "polyphase16": {"stem": "polyphase", "periodic": True},
}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class TimmPerformer(nn.Module):
    """`teka.models.Performer` with what timm asks of a model: `forward_features`, a head to reset, intermediates.

    >>> import timm, torch, teka.integrations.timm
    >>> teka.integrations.timm.register()
    >>> model = timm.create_model("teka_tiny_patch16_224", num_classes=10)
    >>> model.forward_features(torch.rand(1, 3, 224, 224)).shape
    torch.Size([1, 196, 192])

    Args:
        img_size: Pixels along each axis, a multiple of 16.
        in_chans: Channels of the images.
        num_classes: Number of logits; 0 for pooled features.
        drop_rate: Probability of dropping a number in attention and MLPs in training.
        global_pool: What the head reads: the mean of the tokens, "avg", or each of them, "".
        options: Keywords of `Performer`: dim, depth, heads and others.
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
        super().__init__()
        sizes = (
            img_size if isinstance(img_size, int) else tuple(img_size),
            in_chans,
            max(num_classes, 1),
        )
        self.model = Performer(*sizes, patch_size=16, pool="mean", dropout=drop_rate, **options)
        self.num_features = self.head_hidden_size = self.model.norm.normalized_shape[0]
        info = {"num_chs": self.num_features, "reduction": self.model.patch_size}
        self.feature_info = [
            info | {"module": f"model.blocks.{place}"} for place in range(len(self.model.blocks))
        ]
        self.reset_classifier(num_classes, global_pool)

    def get_classifier(self) -> nn.Module:
        """The head."""
        return self.model.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A new head of so many classes, or none for 0, of the tokens' mean, "avg", or of each token, ""."""
        if global_pool not in (None, "avg", ""):
            raise wrong_value("global_pool", global_pool, "'avg', '' or None")
        self.num_classes = num_classes
        self.global_pool = self.global_pool if global_pool is None else global_pool
        head = nn.Identity() if num_classes == 0 else nn.Linear(self.num_features, num_classes)
        self.model.head = head.to(self.model.norm.weight)

    def forward_features(
        self, x: Float[Tensor, "batch channels *sides"]
    ) -> Float[Tensor, "batch tokens dim"]:
        """Tokens after the last block, normalized."""
        return self.model.encode(x)[0]

    def forward_head(
        self, x: Float[Tensor, "batch tokens dim"], pre_logits: bool = False
    ) -> Float[Tensor, "batch *tokens_outputs"]:
        """Their mean, or themselves, and its logits."""
        pooled = x.mean(dim=1) if self.global_pool else x
        return pooled if pre_logits else self.model.head(pooled)

    def forward(
        self, x: Float[Tensor, "batch channels *sides"]
    ) -> Float[Tensor, "batch *tokens_outputs"]:
        return self.forward_head(self.forward_features(x))

    def forward_intermediates(
        self,
        x: Float[Tensor, "batch channels *sides"],
        indices: int | Sequence[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Tokens after chosen blocks, as maps or in rows, and after the last; arguments are those of timm's models."""
        taken, _ = feature_take_indices(len(self.model.blocks), indices)
        found: list[Tensor] = []

        def keep(block: nn.Module, given: tuple, tokens: Tensor) -> None:
            tokens = self.model.norm(tokens) if norm else tokens
            found.append(self.model.grid.unflatten(tokens) if output_fmt == "NCHW" else tokens)

        hooks = [self.model.blocks[place].register_forward_hook(keep) for place in sorted(taken)]
        try:
            last = self.forward_features(x)
        finally:
            for hook in hooks:
                hook.remove()
        return found if intermediates_only else (last, found)


def register() -> None:
    """Make timm know teka's models: "teka_tiny_patch16_224", "teka_tiny_polyphase16_224", small and base."""
    for size, (dim, depth, heads) in SIZES.items():
        for kind, stem in KINDS.items():
            name = f"teka_{size}_{kind}_224"
            if not is_model(name):
                register_model(
                    _entry_point(name, {"dim": dim, "depth": depth, "heads": heads, **stem})
                )


def _entry_point(name: str, options: dict[str, Any]) -> Any:
    def make(pretrained: bool = False, pretrained_cfg: Any = None, **kwargs: Any) -> nn.Module:
        facts = {"mean": MEAN, "std": STD, "input_size": (3, 224, 224), "num_classes": 1000}
        return build_model_with_cfg(
            TimmPerformer,
            name,
            pretrained,
            pretrained_cfg=pretrained_cfg or facts,
            feature_cfg={"out_indices": 3, "feature_cls": "getter"},
            **{**options, **kwargs},
        )

    make.__name__, make.__module__, make.__doc__ = (
        name,
        __name__,
        f"`TimmPerformer` with {options}.",
    )
    return make
