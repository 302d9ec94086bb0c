"""Models mended without training, where the audit found that they lose shifts: padding, sampling, positions."""

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, conv2d, max_pool2d, pad

from teka._checkpoint import restore_in_recomputation
from teka.audit.layers.fixes import FIXES, place_axes
from teka.audit.layers.layouts import pair
from teka.audit.layers.localize import LayerFindings
from teka.checks import check_module, check_names
from teka.errors import wrong_type, wrong_value
from teka.nn.sampling.polyphase import PolyphaseDownsample

Maps = Float[Tensor, "batch channels height width"]
Made = Float[Tensor, "batch out_channels out_height out_width"]
SAMPLED_BY = ("blur", "polyphase")
# Offset and identities of the layers that use it, by sides and stride.
Chosen: TypeAlias = dict[tuple[int, ...], tuple[Tensor, list[int]]]


@dataclass(frozen=True)
class Mending:
    """Layers that `mend` changed, and layers that it could not change.

    >>> from teka.convert import Mending
    >>> print(Mending({"blur": ("conv1",)}, {"blur": {"conv2": "its stride does not divide its map"}}))
    blur: conv1
    blur: not conv2: its stride does not divide its map

    Attributes:
        fixed: Names of the changed layers for each fix.
        left: Names of the unchanged layers for each fix, with the reason.
    """

    fixed: dict[str, tuple[str, ...]]
    left: dict[str, dict[str, str]]

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters and buffers whose values are others now; all else of the state is as it was."""
        return self.fixed.get("positions", ())

    def __str__(self) -> str:
        lines = [f"{name}: {', '.join(layers)}" for name, layers in self.fixed.items() if layers]
        lines += [
            f"{name}: no layer that it is for"
            for name in self.fixed
            if not (self.fixed[name] or self.left[name])
        ]
        lines += [
            f"{fix}: not {name}: {why}"
            for fix, layers in self.left.items()
            for name, why in layers.items()
        ]
        return "\n".join(lines) or "nothing to mend: no layer is to blame that a fix is for"


def mend(
    model: nn.Module, layers: LayerFindings | None, fixes: Sequence[str] | None = None
) -> tuple[nn.Module, Mending]:
    """Return a copy of a model in which layers that break shift equivariance are fixed, without training.

    - "circular" replaces zero padding by circular padding, which removes edges under circular shifts.
    - "blur" computes every cell of convolutions and pooling layers with a stride s, applies a binomial
      low-pass filter of 2s − 1 cells, and keeps every s-th cell (Zhang 2019).
    - "polyphase" computes every cell on the periodic map, and keeps every s-th one from an offset that
      the content selects (Chaman & Dokmanić 2021). Layers with the same input grid share one offset.
    - "positions" replaces a learned position embedding by its mean over the positions.

    With "circular" and "polyphase", a model that ends in a mean over positions does not change under
    circular shifts, up to rounding, if each stride divides the size of its map and all other layers are
    equivariant. The copy has the parameter names of the model; only "positions" changes values.

    >>> import torch, teka
    >>> from torch import nn
    >>> layers = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    >>> model, images = nn.Sequential(*layers).eval(), torch.randn(8, 3, 16, 16)
    >>> fixed, changes = teka.convert.mend(model, teka.audit.audit(model, images).layers)
    >>> print(changes)
    circular: 0
    polyphase: 0
    >>> torch.allclose(fixed(images), fixed(images.roll((3, 5), (2, 3))), atol=1e-6)
    True

    Args:
        model: The model.
        layers: Result of `teka.audit.locate_layers` for this model, or `report.layers` of an audit.
        fixes: Names of fixes. Each applies to all layers that it supports. Default: `layers.advised`,
            the fixes for the layers that break first.

    Returns:
        The fixed model, and the changes.

    Raises:
        ValueError: There are no results, they belong to another model, or a fix is unknown.
    """
    check_module("model", model)
    if not isinstance(layers, LayerFindings):
        raise wrong_type("layers", layers, "what teka.audit.locate_layers found")
    if fixes is not None:
        fixes = check_names("fixes", fixes, FIXES)
    chosen = [name for name in FIXES if name in (layers.advised if fixes is None else fixes)]
    fixed = {name: layers.mendable(name) for name in chosen}
    left = {
        name: {one: why for one, why in layers.fixes.get(name, {}).items() if why}
        for name in chosen
    }
    mended, offsets = copy.deepcopy(model), Offsets()
    state, modules = (
        dict([*mended.named_parameters(), *mended.named_buffers()]),
        dict(mended.named_modules()),
    )
    for name in (one for of_fix in fixed.values() for one in of_fix):
        if name not in modules and name not in state:
            raise wrong_value("layers", name, f"a layer of this {type(model).__name__}")
    with torch.no_grad():
        for name in fixed.get("positions", ()):
            _forget_places(state[name], layers)
    for name in dict.fromkeys(
        one for fix in ("circular", *SAMPLED_BY) for one in fixed.get(fix, ())
    ):
        # With "circular" a low pass goes on at the other side too, also where the layer itself does not pad.
        _change(
            modules[name],
            [fix for fix in chosen if fix == "circular" or name in fixed[fix]],
            offsets,
        )
    if any(fixed.get(fix) for fix in SAMPLED_BY):
        mended.register_forward_pre_hook(offsets.forget)
        mended.register_forward_hook(offsets.forget)
    return mended, Mending(fixed, left)


def _forget_places(table: Tensor, layers: LayerFindings) -> None:
    """Set each place's embedding to the mean of all; those of tokens before the grid stay."""
    grids = [(one.grid, one.prefix_tokens) for one in layers.findings if one.grid]
    found = place_axes(tuple(table.shape), [(layers.seen_size, 0), *grids])
    if found is None:
        raise wrong_value(
            "layers", tuple(table.shape), "findings with the grid of this position embedding"
        )
    axes, before = found
    placed = table.narrow(axes[0], before, table.shape[axes[0]] - before)
    placed.copy_(placed.mean(axes, keepdim=True).expand_as(placed))


def _change(module: nn.Module, fixes: Sequence[str], offsets: "Offsets") -> None:
    # The class is changed in place, as torch's parametrizations do: what is shared or has hooks stays so.
    changed: Any = module
    if isinstance(module, nn.Conv2d) and not set(fixes) & set(SAMPLED_BY):
        changed.padding_mode = "circular"
    elif type(module) in SAMPLED:
        changed.__class__ = SAMPLED[type(module)]
        changed.prepare(fixes, offsets)
    else:
        changed.__class__ = nn.CircularPad2d


class Offsets:
    """Offsets that the sampling layers of one model share within a forward pass, one for each sampled grid.

    The branches of a residual block have to keep cells from the same offset, otherwise their sum does not move with
    the content (Chaman & Dokmanić 2021). Therefore the first layer that samples a grid chooses its offset, and the
    other layers use this offset. A layer that is called again starts a new choice, for example because one pass takes
    several images in turn.

    Each thread has its own offsets, and `torch.utils.checkpoint` recomputes layers with those of their forward pass.
    """

    def forget(self, *_: object) -> None:
        """Forget the offsets of the pass; a forward hook of the model."""
        _running.chosen.pop(self, None)

    def sample(self, layer: nn.Module, cells: Maps, sampling: PolyphaseDownsample) -> Made:
        """Return every s-th cell of a layer, from the offset of this grid if another layer has chosen one."""
        chosen = _running.chosen.setdefault(self, {})
        # The batch size is not part of the key, because a symbolic size cannot be hashed.
        grid = (*cells.shape[2:], *sampling.stride)
        known, layers = chosen.get(grid, (None, []))
        if known is None or id(layer) in layers or known.shape[0] != cells.shape[0]:
            sampled, known = sampling.forward_with_offset(cells)
            layers = []
        else:
            sampled, _ = sampling.forward_with_offset(cells, known)
        chosen[grid] = known, [*layers, id(layer)]
        return sampled


class _Running(threading.local):
    """The offsets of all models in the forward passes that run in this thread."""

    def __init__(self) -> None:
        self.chosen: dict[Offsets, Chosen] = {}


_running = _Running()


def _capture_offsets() -> Callable[[], AbstractContextManager[None]]:
    captured = {offsets: dict(chosen) for offsets, chosen in _running.chosen.items()}

    @contextmanager
    def restore() -> Iterator[None]:
        outside = _running.chosen
        _running.chosen = {offsets: dict(chosen) for offsets, chosen in captured.items()}
        try:
            yield
        finally:
            _running.chosen = outside

    return restore


restore_in_recomputation(_capture_offsets)


class _Sampled(nn.Module):
    """A convolution or pooling that takes every cell, and keeps some of what it makes."""

    outside = 0.0  # what a map without an edge of its own is padded with
    sampling: PolyphaseDownsample

    def prepare(self, fixes: Sequence[str], offsets: Offsets) -> None:
        """Take what a module of the class before needs more."""
        window: Any = self
        before, stride = getattr(self, "padding_mode", "zeros"), pair(window.stride)
        periodic = before == "circular" or "circular" in fixes or "polyphase" in fixes
        window.padding_mode = "circular" if periodic else before
        self.sampling = PolyphaseDownsample(
            stride,
            select="norm" if "polyphase" in fixes else "fixed",
            blur=2 * max(stride) - 1 if "blur" in fixes and max(stride) > 1 else None,
            periodic=periodic,
        ).train(self.training)
        self.offsets = offsets

    def forward(self, input: Maps) -> Made:
        window: Any = self
        sizes, steps = pair(window.kernel_size), pair(getattr(self, "dilation", 1))
        padding = (0, 0) if window.padding == "valid" else pair(window.padding)
        # Behind the last cell as much as a window that begins there sees.
        sides = [
            (cells, step * (size - 1) - cells)
            for cells, size, step in zip(padding, sizes, steps, strict=True)
        ]
        around = [*sides[1], *sides[0]]
        if window.padding_mode == "zeros":
            maps = pad(input, around, value=self.outside)
        else:
            maps = pad(input, around, mode=window.padding_mode)
        return self.offsets.sample(self, self.take_all(maps), self.sampling)

    def take_all(self, maps: Maps) -> Made:
        """What the windows that begin at every cell make."""
        raise NotImplementedError


class SampledConv2d(_Sampled, nn.Conv2d):
    """A convolution of which not every s-th cell from the first is kept."""

    def take_all(self, maps: Maps) -> Made:
        return conv2d(maps, self.weight, self.bias, 1, 0, self.dilation, self.groups)


class SampledMaxPool2d(_Sampled, nn.MaxPool2d):
    """A maximum over windows of which not every s-th from the first is kept."""

    outside = -torch.inf

    def take_all(self, maps: Maps) -> Made:
        return max_pool2d(maps, self.kernel_size, 1, 0, self.dilation)


class SampledAvgPool2d(_Sampled, nn.AvgPool2d):
    """A mean over windows of which not every s-th from the first is kept."""

    def take_all(self, maps: Maps) -> Made:
        return avg_pool2d(maps, self.kernel_size, 1, divisor_override=self.divisor_override)


SAMPLED: dict[type, type[_Sampled]] = {
    nn.Conv2d: SampledConv2d,
    nn.MaxPool2d: SampledMaxPool2d,
    nn.AvgPool2d: SampledAvgPool2d,
}
