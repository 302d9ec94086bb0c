"""Antialiasing and other fixes that make a trained model less sensitive to shifted images."""

import copy
import threading
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from teka._checkpoint import restore_thread_locals_in_checkpoints
from teka.audit.layers.fixes import FIXES
from teka.audit.layers.layouts import as_pair, find_position_axes
from teka.audit.layers.localize import LayerFindings
from teka.checks import check_module, check_names
from teka.errors import wrong_type, wrong_value
from teka.nn.sampling.polyphase import PolyphaseDownsample

Images = Float[Tensor, "batch channels height width"]
Outputs = Float[Tensor, "batch out_channels out_height out_width"]
# Key of a grid: the `SharedSamplingOffsets` of its model, its sides and the stride.
SampledGrid: TypeAlias = tuple["SharedSamplingOffsets | int", ...]


@dataclass(frozen=True)
class FixReport:
    """Report of `teka.convert.fix`: the changed layers, and those that could not be changed.

    >>> from teka.convert import FixReport
    >>> reason = "its stride does not divide its map"
    >>> print(FixReport({"blur": ("conv1",)}, {"blur": {"conv2": reason}}))
    blur: conv1
    blur: not conv2: its stride does not divide its map

    Attributes:
        fixed: For each fix, the names of the changed layers.
        left: For each fix, the layers that it could not change, and the reason for each layer.
    """

    fixed: dict[str, tuple[str, ...]]
    left: dict[str, dict[str, str]]

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the position embeddings that have new values."""
        return self.fixed.get("positions", ())

    def __str__(self) -> str:
        lines = []
        for name, layers in self.fixed.items():
            if layers:
                lines.append(f"{name}: {', '.join(layers)}")
            elif not self.left[name]:
                lines.append(f"{name}: no applicable layer")
        for name, reasons in self.left.items():
            lines += [f"{name}: not {layer}: {reason}" for layer, reason in reasons.items()]
        return (
            "\n".join(lines) or "nothing to fix: no fix applies to a layer that breaks equivariance"
        )


def fix(
    model: nn.Module, layers: LayerFindings | None, fixes: Sequence[str] | None = None
) -> tuple[nn.Module, FixReport]:
    """Make a copy of a model less sensitive to shifts of its input, without training.

    The fixes are:

    - "circular": padding continues at the opposite edge. This removes edge effects under circular
      shifts.
    - "blur": convolutions and pooling with stride s are evaluated with stride 1, then a binomial
      filter of width 2s − 1 removes high frequencies, and then every s-th pixel is kept.
    - "polyphase": convolutions and pooling with stride s are evaluated with stride 1 and circular
      padding. Then every s-th pixel is kept, starting at an offset that moves with the content. All
      layers that sample a map of the same size use the same offset.
    - "positions": every vector of a learned position embedding becomes the mean over positions.

    A model with "circular" and "polyphase" is invariant to circular shifts, up to rounding, if each
    stride divides the side of its map, all other layers are equivariant, and the model ends in a
    mean over positions. The copy has the same parameter names as the model. Only "positions"
    changes parameter values.

    >>> import torch, teka
    >>> from torch import nn
    >>> convolution = nn.Conv2d(3, 8, 3, stride=2, padding=1)
    >>> pooling = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    >>> model = nn.Sequential(convolution, nn.ReLU(), pooling).eval()
    >>> images = torch.randn(8, 3, 16, 16)
    >>> fixed, report = teka.convert.fix(model, teka.audit.audit(model, images).layers)
    >>> print(report)
    circular: 0
    polyphase: 0
    >>> torch.allclose(fixed(images), fixed(images.roll((3, 5), (2, 3))), atol=1e-6)
    True

    Args:
        model: The model.
        layers: Result of `teka.audit.locate_layers` for the model, or `layers` of an audit report.
        fixes: Names of fixes. Each fix changes all layers that it supports. The default is
            `layers.recommended_fixes`, the fixes of the layers that break equivariance first.

    Raises:
        ValueError: `layers` belongs to another model, or a fix is unknown.

    Source: Zhang 2019 (blur); Chaman & Dokmanić 2021 (polyphase).
    """
    check_module("model", model)
    if not isinstance(layers, LayerFindings):
        raise wrong_type("layers", layers, "the result of teka.audit.locate_layers")
    selected = layers.recommended_fixes if fixes is None else check_names("fixes", fixes, FIXES)
    names = [name for name in FIXES if name in selected]
    report = FixReport({}, {})
    fixes_by_layer: dict[str, set[str]] = {}
    for name in names:
        reasons = layers.fixes.get(name, {})
        report.fixed[name] = layers.fixable(name)
        report.left[name] = {layer: reason for layer, reason in reasons.items() if reason}
        for layer in report.fixed[name]:
            fixes_by_layer.setdefault(layer, set()).add(name)

    result = copy.deepcopy(model)
    modules = dict(result.named_modules())
    tensors = dict([*result.named_parameters(), *result.named_buffers()])
    offsets = SharedSamplingOffsets()
    for layer, layer_fixes in fixes_by_layer.items():
        if layer in modules:
            # With "circular", the low-pass filter wraps too, even if the layer itself does not pad.
            _apply_fixes_to_layer(
                modules[layer], layer_fixes | ({"circular"} & set(names)), offsets
            )
        elif layer in tensors:
            _average_position_embedding(tensors[layer], layers)
        else:
            raise wrong_value("layers", layer, f"a layer of this {type(model).__name__}")
    result.register_forward_pre_hook(offsets.reset)
    result.register_forward_hook(offsets.reset)
    return result, report


@torch.no_grad()
def _average_position_embedding(embedding: Tensor, layers: LayerFindings) -> None:
    """Replace all vectors of a learned position embedding by their mean, in place.

    The vectors of class and register tokens do not change.

    Args:
        embedding: Parameter or buffer with the position embedding.
        layers: Result of `teka.audit.locate_layers`, which contains the token grid of each layer.
    """
    grids = [(finding.grid, finding.prefix_tokens) for finding in layers.findings if finding.grid]
    placement = find_position_axes(tuple(embedding.shape), [(layers.seen_size, 0), *grids])
    if placement is None:
        raise wrong_value(
            "layers", tuple(embedding.shape), "findings with the grid of this position embedding"
        )
    axes, num_prefix_tokens = placement
    num_positions = embedding.shape[axes[0]] - num_prefix_tokens
    vectors = embedding.narrow(axes[0], num_prefix_tokens, num_positions)
    vectors.copy_(vectors.mean(axes, keepdim=True).expand_as(vectors))


def _apply_fixes_to_layer(
    module: nn.Module, fixes: Set[str], offsets: "SharedSamplingOffsets"
) -> None:
    """Apply the fixes "circular", "blur" and "polyphase" to a layer, in place."""
    # Change the class in place, as in torch's parametrizations, so that hooks and layers that are
    # used twice are kept.
    changed: Any = module
    if isinstance(module, nn.Conv2d) and fixes == {"circular"}:
        changed.padding_mode = "circular"
    elif type(module) in SAMPLED_CLASSES:
        changed.__class__ = SAMPLED_CLASSES[type(module)]
        changed.separate_padding_and_stride(fixes, offsets)
    else:
        changed.__class__ = nn.CircularPad2d


class SharedSamplingOffsets:
    """Sampling offsets that the strided layers of a model share during a forward pass.

    With polyphase sampling, a layer keeps every s-th pixel from an offset that depends on the
    content. All branches of a residual block must use the same offset, so that their sum moves with
    the content (Chaman & Dokmanić 2021). Therefore, the first layer that samples a feature map of a
    given size chooses the offset, and later layers with maps of this size use it too. If a layer is
    called again in the same forward pass, it chooses a new offset.

    Each thread has its own offsets, and `torch.utils.checkpoint` recomputes layers with the offsets
    of their forward pass.
    """

    def reset(self, *_: object) -> None:
        """Delete all offsets. The model calls this hook before and after each forward pass."""
        for grid in [grid for grid in _thread_offsets.choices if grid[0] is self]:
            del _thread_offsets.choices[grid]

    def downsample_at_shared_offset(
        self, layer: nn.Module, outputs: Images, sampling: PolyphaseDownsample
    ) -> Outputs:
        """Downsample a layer's output at the offset for feature maps of its size.

        Args:
            layer: The layer.
            outputs: Output of the layer with stride 1.
            sampling: Downsampling module of the layer. It chooses the offset if no other layer has
                chosen one in this forward pass.
        """
        # The batch size is not part of the grid, because a symbolic size cannot be hashed.
        grid = (self, *outputs.shape[2:], *sampling.stride)
        offset, layers = _thread_offsets.choices.get(grid, (None, ()))
        if offset is None or id(layer) in layers or offset.shape[0] != outputs.shape[0]:
            offset, layers = None, ()
        sampled, offset = sampling.forward_with_offset(outputs, offset)
        _thread_offsets.choices[grid] = offset, (*layers, id(layer))
        return sampled


class _ThreadLocalOffsets(threading.local):
    """Thread-local storage of `SharedSamplingOffsets`.

    Attributes:
        choices: For each grid, the chosen offset and the identifiers of the layers that have used
            it in this forward pass.
    """

    def __init__(self) -> None:
        self.choices: dict[SampledGrid, tuple[Tensor, tuple[int, ...]]] = {}


_thread_offsets = _ThreadLocalOffsets()


restore_thread_locals_in_checkpoints(_thread_offsets)


class _DownsamplingLayer(nn.Module):
    """Base class of convolution and pooling layers that downsample in a separate step.

    The layer itself has stride 1. A `PolyphaseDownsample` after it replaces the stride, so that the
    fixes can change the padding, add a low-pass filter or choose the sampling offset.
    """

    padding_value: float | None = None
    sampling: PolyphaseDownsample

    def separate_padding_and_stride(self, fixes: Set[str], offsets: SharedSamplingOffsets) -> None:
        """Move the layer's padding and stride to separate operations before and after the layer.

        The selected fixes determine how these operations work.

        Args:
            fixes: Names of the fixes to apply.
            offsets: Sampling offsets of the model.
        """
        layer: Any = self
        stride = as_pair(layer.stride)
        top, left = (0, 0) if layer.padding == "valid" else as_pair(layer.padding)
        sizes = zip(as_pair(layer.kernel_size), as_pair(getattr(self, "dilation", 1)), strict=True)
        # A window starts at every cell, so that the last windows extend beyond the padding.
        height, width = (dilation * (size - 1) for size, dilation in sizes)
        self.margins = (left, width - left, top, height - top)
        mode = getattr(self, "padding_mode", "zeros")
        is_periodic = mode == "circular" or bool(fixes & {"circular", "polyphase"})
        self.margin_mode = "circular" if is_periodic else mode.replace("zeros", "constant")
        self.sampling = PolyphaseDownsample(
            stride,
            select="norm" if "polyphase" in fixes else "fixed",
            blur=2 * max(stride) - 1 if "blur" in fixes and max(stride) > 1 else None,
            periodic=is_periodic,
        ).train(self.training)
        self.offsets = offsets
        layer.stride = (1, 1)
        layer.padding = (0, 0)
        layer.padding_mode = "zeros"

    def forward(self, input: Images) -> Outputs:
        value = self.padding_value if self.margin_mode == "constant" else None
        outputs = super().forward(pad(input, self.margins, self.margin_mode, value))
        return self.offsets.downsample_at_shared_offset(self, outputs, self.sampling)


class SampledConv2d(_DownsamplingLayer, nn.Conv2d):
    """Convolution with stride 1, followed by downsampling."""


class SampledMaxPool2d(_DownsamplingLayer, nn.MaxPool2d):
    """Max pooling with stride 1, followed by downsampling."""

    padding_value = -torch.inf


class SampledAvgPool2d(_DownsamplingLayer, nn.AvgPool2d):
    """Average pooling with stride 1, followed by downsampling."""


SAMPLED_CLASSES: dict[type, type[_DownsamplingLayer]] = {
    nn.Conv2d: SampledConv2d,
    nn.MaxPool2d: SampledMaxPool2d,
    nn.AvgPool2d: SampledAvgPool2d,
}
