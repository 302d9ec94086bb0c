"""Multi-head attention with a content kernel and a relative kernel."""

import warnings

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from teka import functional
from teka.errors import unknown_name, wrong_shape, wrong_value
from teka.functional.backend import BACKENDS, backend_costs, choose_backend
from teka.functional.estimator_report import estimator_report
from teka.functional.kernel import DETERMINISTIC_KERNELS, KERNELS, RANDOM_KERNELS, Constant, Kernel
from teka.functional.placement import Placement
from teka.grid import Grid
from teka.nn.random_features import RandomFeatures
from teka.nn.relative import ClippedFeatures, RelativeModule, RotationJoint, make_relative_module

# Tokens of one sample on which an estimator is compared with the truth, once.
CHECKED_TOKENS = 256


class CollapseWarning(UserWarning):
    """A layer's random features predict the mean of the values."""


class Attention(nn.Module):
    """Self-attention over the tokens of a grid: `teka.functional.attention` between learned projections.

    A relative kernel with heads of its own (`clipped`) takes the second half of the heads, which then attend by
    position alone and have no keys; the first half attends by content alone. A kernel that does not look at content has
    no queries and keys at all, and the softmax kernel, in which a key's bias cancels, has keys without bias.

    Dropout acts on the output: fast paths hold no matrix of weights to drop entries of.

    Args:
        dim: Size of a token.
        heads: Number of heads.
        dim_head: Size of a head, dim / heads by default.
        kernel: Content kernel, a name, an instance or a `RandomFeatures`.
        relative: Relative kernel, a name, a module such as `teka.nn.Rotation`, or None.
        num_features: Number of random features m, ⌊d ln d⌋ by default; only for kernels that have them.
        qkv_bias: Whether queries, keys and values have a bias.
        dropout: Probability of dropping a number of the output in training.
        backend: "auto", "dense", "linear", "toeplitz" or "rings".
        num_axes: Number of axes of the grids to come, for relative kernels given by name.

    Raises:
        ValueError: Sizes that do not fit, an unknown name, or an option that would have no effect.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        dim_head: int | None = None,
        kernel: str | Kernel | RandomFeatures = "squared_relu",
        relative: str | RelativeModule | None = None,
        num_features: int | None = None,
        qkv_bias: bool = True,
        dropout: float = 0.0,
        backend: str = "auto",
        num_axes: int = 2,
    ) -> None:
        super().__init__()
        for argument, size in (("dim", dim), ("heads", heads), ("dim_head", dim_head)):
            if size is not None and size < 1:
                raise wrong_value(argument, size, "at least 1")
        if dim_head is None and dim % heads:
            raise wrong_value("heads", heads, f"a divisor of dim = {dim}, or dim_head to be given")
        if backend not in BACKENDS:
            raise unknown_name("backend", backend, BACKENDS)
        if not 0 <= dropout < 1:
            raise wrong_value("dropout", dropout, "a probability of at least 0 and below 1")
        self.dim, self.heads = dim, heads
        self.dim_head = dim // heads if dim_head is None else dim_head
        self.backend = backend
        self.relative = make_relative_module(
            relative, num_axes=num_axes, heads=heads, dim_head=self.dim_head, num_features=num_features
        )
        own = self.relative is not None and self.relative.has_own_heads
        if own and heads < 2:
            raise wrong_value("heads", heads, f"at least 2 with relative={relative!r}, which takes half of them")
        self.content_heads = heads - heads // 2 if own else heads
        self.kernel = self._make_kernel(kernel, num_features)
        uses_content = not isinstance(self.kernel, Kernel) or self.kernel.uses_content
        query_heads = self.content_heads if uses_content else 0
        if own and self.relative is not None and self.relative.uses_query:
            query_heads += heads - self.content_heads
        key_heads = self.content_heads if uses_content else 0
        key_bias = qkv_bias and not isinstance(self.kernel, functional.Softmax)
        self.query = nn.Linear(dim, query_heads * self.dim_head, bias=qkv_bias) if query_heads else None
        self.key = nn.Linear(dim, key_heads * self.dim_head, bias=key_bias) if key_heads else None
        self.value = nn.Linear(dim, heads * self.dim_head, bias=qkv_bias)
        self.output = nn.Linear(heads * self.dim_head, dim)
        self.dropout = nn.Dropout(dropout)

    def _make_kernel(self, kernel: str | Kernel | RandomFeatures, num_features: int | None) -> Kernel | RandomFeatures:
        random = isinstance(kernel, str) and kernel in RANDOM_KERNELS
        if num_features is not None and not random and not isinstance(self.relative, ClippedFeatures):
            raise wrong_value(
                "num_features", num_features, f"None with kernel={kernel!r}, which has no random features"
            )
        if isinstance(kernel, Kernel | RandomFeatures):
            return kernel
        if isinstance(kernel, str) and random:
            joint = self.relative.num_position_features if isinstance(self.relative, RotationJoint) else 0
            return RandomFeatures(kernel, self.dim_head + joint, num_features=num_features)
        if kernel not in DETERMINISTIC_KERNELS:
            raise unknown_name("kernel", kernel, KERNELS)
        return DETERMINISTIC_KERNELS[kernel]()

    def forward(
        self,
        tokens: Float[Tensor, "batch tokens dim"],
        grid: Grid | None = None,
        key_mask: Bool[Tensor, "batch tokens"] | None = None,
        num_prefix_tokens: int = 0,
        num_queries: int | None = None,
    ) -> Float[Tensor, "batch queries dim"]:
        """Attend.

        Args:
            tokens: Tokens, shape (B, L, dim).
            grid: The grid whose cells they are, after the prefix; None only without a relative kernel.
            key_mask: True where a token may be attended to, shape (B, L).
            num_prefix_tokens: Number of first tokens without a position, such as a class token.
            num_queries: Number of first tokens that attend and are returned, all by default; fewer only without a
                relative kernel.

        Raises:
            ValueError: Shapes that do not fit, or a mask that keeps nothing.
        """
        if tokens.ndim != 3 or tokens.shape[-1] != self.dim:
            raise wrong_shape("tokens", tokens.shape, f"(batch, tokens, {self.dim})")
        if num_queries is not None and (self.relative is not None or not 1 <= num_queries <= tokens.shape[1]):
            raise wrong_value("num_queries", num_queries, f"None, or 1 to {tokens.shape[1]} without a relative kernel")
        value = self._split(self.value(tokens))
        # A kernel that does not look at content gets the values in place of queries and keys.
        query = value[:, :, :num_queries] if self.query is None else self._split(self.query(tokens[:, :num_queries]))
        key = value if self.key is None else self._split(self.key(tokens))
        kernel = self.kernel() if isinstance(self.kernel, RandomFeatures) else self.kernel
        relative = None if self.relative is None else self.relative()
        self._warn_of_collapse(query, key, value, grid, num_prefix_tokens)
        content = self.content_heads
        if content == self.heads:
            mixed = functional.attention(
                query,
                key,
                value,
                kernel=kernel,
                relative=relative,
                grid=grid if num_queries is None else None,
                key_mask=key_mask,
                backend=self.backend,
                num_prefix_tokens=num_prefix_tokens if num_queries is None else 0,
            )
        else:
            by_content = functional.attention(
                query[:, :content] if self.key is not None else value[:, :content],
                key[:, :content],
                value[:, :content],
                kernel=kernel,
                key_mask=key_mask,
                backend="dense" if self.backend == "dense" else "auto",
            )
            by_position = functional.attention(
                query[:, content - self.heads :],
                value[:, content:],
                value[:, content:],
                kernel="constant",
                relative=relative,
                grid=grid,
                key_mask=key_mask,
                backend=self.backend,
                num_prefix_tokens=num_prefix_tokens,
            )
            mixed = torch.cat([by_content, by_position], dim=1)
        return self.dropout(self.output(mixed.transpose(1, 2).flatten(2)))

    def chosen_backend(self, grid: Grid | None = None, num_prefix_tokens: int = 0) -> str:
        """Name of the backend that computes the heads with the relative kernel, or all heads if there is none.

        Args:
            grid: The grid of the tokens.
            num_prefix_tokens: Number of first tokens without a position.

        Raises:
            ValueError: The backend asked for cannot compute this layer on this grid.
        """
        relative = None if self.relative is None else self.relative()
        kernel = self.kernel() if isinstance(self.kernel, RandomFeatures) else self.kernel
        num_tokens = num_prefix_tokens + (1 if grid is None else grid.num_tokens)
        joint = relative.num_position_features if isinstance(relative, functional.RotationJoint) else 0
        costs = backend_costs(
            kernel if self.content_heads == self.heads else Constant(),
            None if joint else relative,
            Placement(grid, None, num_prefix_tokens),
            num_queries=num_tokens,
            num_keys=num_tokens,
            dim=self.dim_head + joint,
            dim_value=self.dim_head,
        )
        return choose_backend(self.backend, costs)

    def _split(self, tokens: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch heads tokens dim"]:
        return tokens.unflatten(-1, (-1, self.dim_head)).transpose(1, 2)

    def _warn_of_collapse(
        self,
        query: Float[Tensor, "batch query_heads queries dim"],
        key: Float[Tensor, "batch key_heads tokens dim"],
        value: Float[Tensor, "batch heads tokens dim"],
        grid: Grid | None,
        num_prefix_tokens: int,
    ) -> None:
        """Compare a new draw of random features with the truth, on some tokens of one sample."""
        if torch.compiler.is_compiling() or not isinstance(self.kernel, RandomFeatures) or not self.kernel.is_fresh:
            return
        self.kernel.is_fresh = False
        relative = self.relative() if isinstance(self.relative, RotationJoint) else None
        placed = None if relative is None or grid is None else grid.positions()[:CHECKED_TOKENS].double()
        first = 0 if relative is None else num_prefix_tokens
        part = [tensor[:1, : self.content_heads, first : first + CHECKED_TOKENS] for tensor in (query, key, value)]
        report = estimator_report(part[0], part[1], part[2], self.kernel(), relative=relative, positions=placed)
        if report.collapsed:
            warnings.warn(
                f"{self.kernel!r} has collapsed: its output varies about the mean of the values by {report.spread:.1%} "
                f"of what softmax attention's does; take more features, smaller queries and keys, or another kernel",
                CollapseWarning,
                stacklevel=3,
            )
