"""Relative kernels with learned parameters by name, and those that are not made of waves."""

import inspect
from typing import Any

import torch
from torch import nn
from torch.nn import Parameter
from torch.nn.functional import softplus

from teka import functional as kernels
from teka.checks import POSITIVE, check_name, check_tensor_sizes, is_positive
from teka.errors import unknown_name, wrong_value
from teka.functional.relative.clipped import MAX_DISTANCE
from teka.functional.relative.rotary import ROTARY_NORMALIZERS
from teka.nn.distance import T5, Alibi, Decay, Kerple, Shaw, TransformerXL, Window
from teka.nn.features import RandomFeatures
from teka.nn.options import AttentionOptions
from teka.nn.waves import Fourier, RelativeModule, Rotary, Rotation, RotationJoint, inverse_softplus

MAX_OFFSET = 7  # a window of 15 cells along every axis


class Clipped(RelativeModule):
    """`teka.functional.Clipped` with learned embeddings, in half of the heads, by position alone (Horn et al. 2021).

    The embeddings, one a ring up to `max_distance`, are shared by the heads of a layer and begin at 0.

    >>> import torch, teka
    >>> layer = teka.nn.Attention(16, 4, relative=teka.nn.Clipped(4, max_distance=2), num_axes=1)
    >>> (layer.content_heads, layer.position_heads), layer.relative.distance_embedding.shape
    ((2, 2), torch.Size([3, 4]))
    """

    has_own_heads = True
    uses_query = True
    head_parameters = ()

    def __init__(
        self, dim_head: int, *, max_distance: int = MAX_DISTANCE, ring_width: float = 1.0
    ) -> None:
        super().__init__()
        check_tensor_sizes({"dim_head": dim_head, "max_distance": max_distance})
        if not is_positive(ring_width):
            raise wrong_value("ring_width", ring_width, POSITIVE)
        self.distance_embedding = Parameter(torch.zeros(max_distance + 1, dim_head))
        self.ring_width = ring_width

    def forward(self) -> kernels.Clipped:
        return kernels.Clipped(self.distance_embedding, self.ring_width)


class ClippedFeatures(Clipped):
    """`teka.functional.ClippedFeatures` with what `Clipped` learns, of ⌊d ln d⌋ random features by default.

    >>> import torch, teka
    >>> relative = teka.nn.ClippedFeatures(8, max_distance=2)
    >>> relative().projection.shape, relative.distance_embedding.shape
    (torch.Size([16, 8]), torch.Size([3, 8]))
    """

    head_parameters = ()

    def __init__(
        self,
        dim_head: int,
        *,
        max_distance: int = MAX_DISTANCE,
        ring_width: float = 1.0,
        num_features: int | None = None,
    ) -> None:
        super().__init__(dim_head, max_distance=max_distance, ring_width=ring_width)
        self.random_features = RandomFeatures("positive", dim_head, num_features=num_features)

    def forward(self) -> kernels.ClippedFeatures:
        projection = self.random_features.projection
        return kernels.ClippedFeatures(self.distance_embedding, self.ring_width, projection)


class Quadratic(RelativeModule):
    """`teka.functional.Quadratic`, Δ_h ~ N(0, 2²), α = softplus(`raw_precision`) = 1 (Cordonnier et al. 2020).

    >>> import torch, teka
    >>> relative = teka.nn.Quadratic(num_axes=2, heads=9)
    >>> relative.center.data = teka.Grid((3, 3), origin=-1.0).positions()  # the offsets of a 3 × 3 convolution
    >>> relative().log_at(torch.tensor([[-1.0, 1.0]])).argmax().item()  # the head that looks down and to the left
    6
    """

    head_parameters = ("center", "raw_precision")

    def __init__(self, num_axes: int, heads: int) -> None:
        super().__init__()
        check_tensor_sizes({"num_axes": num_axes, "heads": heads})
        self.center = Parameter(2 * torch.randn(heads, num_axes))
        self.raw_precision = Parameter(inverse_softplus(torch.ones(heads)))

    def forward(self) -> kernels.Quadratic:
        return kernels.Quadratic(self.center, softplus(self.raw_precision))


class GeneralizedQuadratic(RelativeModule):
    """`teka.functional.GeneralizedQuadratic` with learned Δ_h ~ N(0, 2²) and L, the identity at first.

    Σ⁻¹ = LᵀL is positive semi-definite for any L (Cordonnier et al. 2020).

    >>> import torch, teka
    >>> relative, offsets = teka.nn.GeneralizedQuadratic(num_axes=2, heads=3), torch.randn(5, 2)
    >>> round_ = teka.functional.Quadratic(relative.center, precision=torch.full((3,), 0.5))
    >>> torch.allclose(relative().log_at(offsets), round_.log_at(offsets), rtol=1e-4)
    True
    """

    head_parameters = ("center", "precision_factor")

    def __init__(self, num_axes: int, heads: int) -> None:
        super().__init__()
        check_tensor_sizes({"num_axes": num_axes, "heads": heads})
        check_tensor_sizes({"num_axes": num_axes}, num_axes**2)
        check_tensor_sizes({"num_axes": num_axes, "heads": heads}, heads * num_axes**2)
        self.center = Parameter(2 * torch.randn(heads, num_axes))
        self.precision_factor = Parameter(torch.eye(num_axes).repeat(heads, 1, 1))

    def forward(self) -> kernels.GeneralizedQuadratic:
        return kernels.GeneralizedQuadratic(self.center, self.precision_factor)


class Table(RelativeModule):
    """`teka.functional.Table` with learned entries, 0 at first, for offsets of up to `max_offset` cells.

    >>> import torch, teka
    >>> relative = teka.nn.Table(num_axes=2, heads=3, max_offset=4)
    >>> relative.tables.shape, relative().log_at(torch.tensor([[9.0, -2.0]])).exp().flatten().tolist()
    (torch.Size([3, 2, 9]), [1.0, 1.0, 1.0])
    """

    head_parameters = ("tables",)

    def __init__(self, num_axes: int, heads: int, *, max_offset: int = MAX_OFFSET) -> None:
        super().__init__()
        check_tensor_sizes({"num_axes": num_axes, "heads": heads, "max_offset": max_offset})
        self.tables = Parameter(torch.zeros(heads, num_axes, 2 * max_offset + 1))

    def forward(self) -> kernels.Table:
        return kernels.Table(self.tables)


class EmbeddedTable(RelativeModule):
    """`teka.functional.Table` with t_axis[Δ] = v_axisᵀ r_axis[Δ]: an embedding of every offset, and a vector a head.

    The embeddings r, of size D_p = `embedding_dim`, which the heads share, begin as N(0, 1), and the heads' vectors v
    as PyTorch's linear maps, so that an entry begins with variance 1/3 and the heads begin unlike one another. What can
    be learned is what `Table` can learn, but steps of one size move an entry about D_p times as far.

    Source: Ramachandran et al. 2019; Cordonnier et al. 2020, §4.3, without their queries, and with D_p = 400.

    >>> import torch, teka
    >>> relative = teka.nn.EmbeddedTable(num_axes=2, heads=3, max_offset=4, embedding_dim=400)
    >>> relative().tables.shape, relative.embeddings[0].weight.shape, relative.head_vectors[0].weight.shape
    (torch.Size([3, 2, 9]), torch.Size([9, 400]), torch.Size([3, 400]))
    """

    head_parameters = ("head_vectors",)

    def __init__(self, num_axes: int, heads: int, *, max_offset: int, embedding_dim: int) -> None:
        super().__init__()
        sizes = {
            "num_axes": num_axes,
            "heads": heads,
            "max_offset": max_offset,
            "embedding_dim": embedding_dim,
        }
        check_tensor_sizes(sizes)
        self.embeddings = nn.ModuleList(
            nn.Embedding(2 * max_offset + 1, embedding_dim) for _ in range(num_axes)
        )
        self.head_vectors = nn.ModuleList(
            nn.Linear(embedding_dim, heads, bias=False) for _ in range(num_axes)
        )

    def forward(self) -> kernels.Table:
        axes = zip(self.head_vectors, self.embeddings, strict=True)
        return kernels.Table(
            torch.stack([vectors(embedding.weight).T for vectors, embedding in axes], dim=1)
        )


RELATIVE_MODULES: dict[str, type[RelativeModule]] = {
    "rotation": Rotation,
    "rotation_joint": RotationJoint,
    "clipped": Clipped,
    "clipped_features": ClippedFeatures,
    "quadratic": Quadratic,
    "generalized_quadratic": GeneralizedQuadratic,
    "table": Table,
    "fourier": Fourier,
    "rotary": Rotary,
    "decay": Decay,
    "alibi": Alibi,
    "t5": T5,
    "kerple": Kerple,
    "shaw": Shaw,
    "transformer_xl": TransformerXL,
    "window": Window,
}


def relative_class(relative: str | RelativeModule | None) -> type[RelativeModule] | None:
    """The class of a relative kernel, a name, a module or None; a ValueError for anything else."""
    if relative is None or isinstance(relative, RelativeModule):
        return None if relative is None else type(relative)
    if not isinstance(relative, str):
        raise wrong_value("relative", relative, "None, a name or a module such as teka.nn.Rotation")
    if relative not in RELATIVE_MODULES:
        raise unknown_name("relative", relative, RELATIVE_MODULES)
    return RELATIVE_MODULES[relative]


def make_relative_module(
    options: AttentionOptions, heads: int, dim_head: int, features: int
) -> RelativeModule | None:
    """The relative kernel, or a new one of that name for so many heads; an option of another kernel is a ValueError."""
    relative, rotary_normalizer = options.relative, options.rotary_normalizer
    kind = relative_class(relative)
    for argument, name in (("num_waves", "fourier"), ("rotary_normalizer", "rotary")):
        given = getattr(options, argument)
        if given is not None and relative != name:
            raise wrong_value(
                argument, given, f"None with relative={relative!r}; {name!r} by name takes it"
            )
    if kind is None:
        return None
    if isinstance(relative, RelativeModule):
        return relative
    if relative == "rotary" and features < 2:
        expected = "at least 2 with relative='rotary', which rotates pairs of them"
        raise wrong_value("the number of features of kernel", features, expected)
    if rotary_normalizer is not None:
        check_name("rotary_normalizer", rotary_normalizer, ROTARY_NORMALIZERS)
    known: dict[str, Any] = {"num_axes": options.num_axes, "heads": heads, "dim_head": dim_head}
    known |= {"num_features": options.num_features, "num_waves": options.num_waves}
    known |= {"normalizer": rotary_normalizer, "num_pairs": features // 2}
    taken = inspect.signature(kind).parameters
    return kind(
        **{name: value for name, value in known.items() if name in taken and value is not None}
    )
