"""Relative kernels of distance, and of the query and the signed offset, with learned parameters."""

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.functional import softplus

from teka import functional as kernels
from teka.checks import check_name, check_sizes, check_tensor, check_tensor_sizes
from teka.functional.relative.biases import FARTHEST, KERPLE_FORMS, NUM_BUCKETS
from teka.functional.relative.clipped import MAX_DISTANCE
from teka.functional.relative.rotation import NUM_FREQUENCIES
from teka.nn.waves import RelativeModule, inverse_softplus

REACH = 3  # windows of 7 × 7 cells, as of Hassani et al. 2023
MAX_AXES = 62  # PyTorch has tensors of up to 64 axes
WAVE_BASE = 10_000.0  # Vaswani et al. 2017: the ratio of the longest wave to the shortest, nearly


class Decay(RelativeModule):
    """`teka.functional.Decay` with learned rates for each head and axis, at first the slopes of `Alibi`.

    >>> import torch, teka
    >>> relative = teka.nn.Decay(num_axes=2, heads=4)
    >>> torch.allclose(relative().rate, teka.nn.Alibi(4)().slope[:, None].expand(4, 2))
    True
    """

    head_parameters = ("raw_rate",)

    def __init__(self, num_axes: int, heads: int) -> None:
        super().__init__()
        check_tensor_sizes({"num_axes": num_axes, "heads": heads})
        slope = kernels.Alibi.of_heads(heads).slope
        self.raw_rate = Parameter(inverse_softplus(slope)[:, None].repeat(1, num_axes))

    def forward(self) -> kernels.Decay:
        return kernels.Decay(softplus(self.raw_rate))


class Alibi(RelativeModule):
    """`teka.functional.Alibi` with the paper's slopes, which are not learned (Press et al. 2022).

    >>> import torch, teka
    >>> relative = teka.nn.Alibi(4)
    >>> relative().slope, list(relative.parameters())
    (tensor([0.2500, 0.0625, 0.0156, 0.0039]), [])
    """

    head_parameters = ("slope",)
    slope: Tensor

    def __init__(self, heads: int) -> None:
        super().__init__()
        check_tensor_sizes({"heads": heads})
        self.register_buffer("slope", kernels.Alibi.of_heads(heads).slope)

    def forward(self) -> kernels.Alibi:
        return kernels.Alibi(self.slope)


class T5(RelativeModule):
    """`teka.functional.T5` with learned entries, 0 at first, of `num_buckets` buckets up to the distance `farthest`.

    >>> import torch, teka
    >>> relative = teka.nn.T5(num_axes=1, heads=2, num_buckets=8, farthest=16.0)
    >>> layer = teka.nn.Attention(16, 2, kernel="softmax", relative=relative)
    >>> relative().tables.shape, relative().bucket(torch.tensor([0.0, 1.0, 5.0, 99.0, -1.0]))
    (torch.Size([2, 1, 8]), tensor([0, 1, 2, 3, 5]))
    """

    head_parameters = ("tables",)

    def __init__(
        self,
        num_axes: int,
        heads: int,
        *,
        num_buckets: int = NUM_BUCKETS,
        farthest: float = FARTHEST,
    ) -> None:
        super().__init__()
        check_tensor_sizes({"num_axes": num_axes, "heads": heads, "num_buckets": num_buckets})
        self.tables, self.farthest = Parameter(torch.zeros(heads, num_axes, num_buckets)), farthest
        self()

    def forward(self) -> kernels.T5:
        return kernels.T5(self.tables, self.farthest)


class Kerple(RelativeModule):
    """`teka.functional.Kerple`, w and b softplus of learned numbers, at first uniform in [0, 2) and [0, 1) (its code).

    With `form` "power" b is 2 · sigmoid of a learned number, so that c stays positive definite.

    >>> import torch, teka
    >>> relative = teka.nn.Kerple(num_axes=1, heads=8, form="power")
    >>> bool(((relative().bend > 0) & (relative().bend < 2)).all())
    True
    """

    head_parameters = ("raw_weight", "raw_bend")

    def __init__(self, num_axes: int, heads: int, *, form: str = KERPLE_FORMS[0]) -> None:
        super().__init__()
        check_tensor_sizes({"num_axes": num_axes, "heads": heads})
        check_name("form", form, KERPLE_FORMS)
        self.form = form
        weight, bend = torch.rand(2, heads, num_axes).clamp_min(1e-2)
        self.raw_weight = Parameter(inverse_softplus(2 * weight))
        self.raw_bend = Parameter(
            inverse_softplus(bend) if form == "logarithmic" else torch.logit(bend / 2)
        )

    def forward(self) -> kernels.Kerple:
        bend = (
            softplus(self.raw_bend)
            if self.form == "logarithmic"
            else 2 * torch.sigmoid(self.raw_bend)
        )
        return kernels.Kerple(softplus(self.raw_weight), bend, self.form)


class Window(RelativeModule):
    """`teka.functional.Window` of a reach of `max_distance` cells with a learned bias, 0 at first.

    >>> import torch, teka
    >>> near = teka.nn.Window(num_axes=1, heads=2, max_distance=2)
    >>> layer, tokens = teka.nn.Attention(16, 2, relative=near, num_axes=1), torch.randn(1, 9, 16)
    >>> other_end = torch.cat([torch.randn(1, 1, 16), tokens[:, 1:]], dim=1)
    >>> torch.allclose(layer(other_end, teka.Grid(9))[:, 3:], layer(tokens, teka.Grid(9))[:, 3:])
    True
    """

    head_parameters = ("bias",)

    def __init__(self, num_axes: int, heads: int, *, max_distance: int = REACH) -> None:
        super().__init__()
        sizes = {"num_axes": num_axes, "heads": heads, "max_distance": max_distance}
        check_sizes(sizes)
        check_sizes({"num_axes": num_axes}, most=MAX_AXES)
        check_tensor_sizes(sizes, heads * (2 * max_distance + 1) ** num_axes)
        self.bias = Parameter(torch.zeros(heads, *[2 * max_distance + 1] * num_axes))

    def forward(self) -> kernels.Window:
        return kernels.Window(self.bias)


class Shaw(RelativeModule):
    """`teka.functional.Shaw` with learned embeddings, 0 at first, shared by the heads of a layer (Shaw et al. 2018).

    >>> import torch, teka
    >>> relative = teka.nn.Shaw(num_axes=2, dim_head=8, max_distance=3)
    >>> layer = teka.nn.Attention(32, 4, relative=relative)
    >>> relative.embedding.shape  # an axis, an offset from −3 to 3, a number of the queries
    torch.Size([2, 7, 8])
    """

    uses_query = True
    head_parameters = ()

    def __init__(self, num_axes: int, dim_head: int, *, max_distance: int = MAX_DISTANCE) -> None:
        super().__init__()
        check_tensor_sizes(
            {"num_axes": num_axes, "dim_head": dim_head, "max_distance": max_distance}
        )
        self.embedding = Parameter(torch.zeros(num_axes, 2 * max_distance + 1, dim_head))

    def forward(self) -> kernels.Shaw:
        return kernels.Shaw(self.embedding)


class TransformerXL(RelativeModule):
    """`teka.functional.TransformerXL` with learned W, as PyTorch's linear maps at first, and b, 0 at first.

    >>> import torch, teka
    >>> frequency = 8.0 ** -(torch.arange(3) / 2)
    >>> relative = teka.nn.TransformerXL(num_axes=2, heads=2, dim_head=8, frequency=frequency)
    >>> {name: tuple(parameter.shape) for name, parameter in relative.named_parameters()}
    {'query_weight': (2, 6, 2, 8), 'bias': (2, 6, 2)}

    Args:
        num_axes: Number of axes n of the grid.
        heads: Number of heads.
        dim_head: Size of queries.
        frequency: ω in radians per unit of length, shape (scales,), which are not learned; by default 10000^(−s/4) for
            s = 0 … 3. With 8^(−s/2) this is strategy 1 of Horn et al. 2021 with weights that depend on the query.
    """

    uses_query = True
    head_parameters = ("query_weight", "bias")
    frequency: Tensor

    def __init__(
        self, num_axes: int, heads: int, dim_head: int, *, frequency: Tensor | None = None
    ) -> None:
        super().__init__()
        check_tensor_sizes({"num_axes": num_axes, "heads": heads, "dim_head": dim_head})
        if frequency is None:
            frequency = WAVE_BASE ** -(torch.arange(NUM_FREQUENCIES) / NUM_FREQUENCIES)
        check_tensor("frequency", frequency, "scales")
        self.register_buffer("frequency", frequency.detach().clone())
        size = (heads, 2 * len(frequency), num_axes)
        self.query_weight = Parameter(
            nn.init.uniform_(torch.empty(*size, dim_head), -(dim_head**-0.5), dim_head**-0.5)
        )
        self.bias = Parameter(torch.zeros(size))

    def forward(self) -> kernels.TransformerXL:
        frequency = self.frequency[:, None].expand(-1, self.bias.shape[-1])
        return kernels.TransformerXL(frequency, self.query_weight, self.bias)
