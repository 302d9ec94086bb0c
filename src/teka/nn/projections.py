"""Linear maps from tokens to heads and back, with all tokens of a number side by side in memory."""

from collections.abc import Sequence
from typing import TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import Parameter

from teka._compat import by_hand, is_plain_eager_on_cpu
from teka.functional.backends.fused.parts import ALIGNED_TOKENS, has_rows_apart
from teka.functional.shapes import Outputs
from teka.nn.tokens import Tokens

HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)  # of torch's modules
# Rows must not be so many numbers of float32 apart, or a multiple: they would share few places of the cache, and matrix
# products take up to a quarter longer. By how much they are moved apart then.
ALIASED, APART = 512, 48

Columns = Float[Tensor, "size rows"]
Heads = Float[Tensor, "batch heads tokens dim_head"]
# A map, or none, its tokens, (batch, tokens, dim) with as many as it likes, and whether its pairs are taken by halves.
Map = tuple[nn.Module | None, Float[Tensor, "batch _ _"], bool]


def project_heads(
    linear: nn.Module,
    tokens: Tokens,
    dim_head: int,
    *,
    heads_first: bool = False,
    by_halves: bool = False,
) -> Heads:
    """Heads of a linear map of tokens.

    Args:
        linear: The map.
        tokens: The tokens.
        dim_head: Size of a head.
        heads_first: Whether they are in memory as (heads, dim_head, batch, tokens), where the map is a plain one.
        by_halves: Whether of a plain map's pairs of entries, 2p and 2p + 1, all first ones come before all second ones.
    """
    if by_halves:
        assert isinstance(linear, nn.Linear)
        # The map's rows are few: to take its outputs apart would go through them all.
        weight, bias = (_by_halves(one, dim_head) for one in (linear.weight, linear.bias))
        assert weight is not None
        return (
            nn.functional.linear(tokens, weight, bias).unflatten(-1, (-1, dim_head)).transpose(1, 2)
        )
    if not heads_first or not is_plain(linear):
        return linear(tokens).unflatten(-1, (-1, dim_head)).transpose(1, 2)
    assert isinstance(linear, nn.Linear)
    columns = tokens.flatten(0, 1).t()
    bias = linear.bias
    mapped = (
        linear.weight @ columns
        if bias is None
        else torch.addmm(bias[:, None], linear.weight, columns)
    )
    return _heads_of(mapped, tokens, dim_head)


def project_all(
    maps: Sequence[Map], dim_head: int, *, heads_first: bool
) -> list[Float[Tensor, "batch _ _ dim_head"] | None]:
    """Heads of each map; by hand, of all maps of the same tokens together."""
    found: list[Tensor | None] = [None] * len(maps)
    by_hand = [
        (at, linear, tokens)
        for at, (linear, tokens, _) in enumerate(maps)
        if heads_first and linear is not None and _is_by_hand(linear, tokens)
    ]
    for tokens in {id(tokens): tokens for _, _, tokens in by_hand}.values():
        those = [(at, linear) for at, linear, source in by_hand if source is tokens]
        weights = [one for _, linear in those for one in (linear.weight, linear.bias)]
        for (at, _), mapped in zip(
            those, _ToColumns.apply(tokens.flatten(0, 1), *weights), strict=True
        ):
            found[at] = _heads_of(mapped, tokens, dim_head)
    for at, (linear, tokens, by_halves) in enumerate(maps):
        if linear is not None and found[at] is None:
            found[at] = project_heads(
                linear, tokens, dim_head, heads_first=heads_first, by_halves=by_halves
            )
    return found


def _heads_of(columns: Columns, tokens: Tokens, dim_head: int) -> Heads:
    return columns.view(len(columns) // dim_head, dim_head, *tokens.shape[:2]).permute(2, 0, 3, 1)


def _by_halves(rows: Tensor | None, dim_head: int) -> Tensor | None:
    return (
        None
        if rows is None
        else rows.unflatten(0, (-1, dim_head // 2, 2)).transpose(1, 2).flatten(0, 2)
    )


def is_plain(linear: nn.Module | None) -> bool:
    """Whether a map is its weight and bias and nothing else: no forward of its own, and no hooks."""
    if type(linear) is not nn.Linear or "forward" in linear.__dict__:
        return False
    return not any(getattr(linear, hooks) for hooks in HOOKS)


def join_heads(linear: nn.Module, heads: Outputs) -> Tokens:
    """A linear map of tokens whose numbers are those of all heads; in whatever order they lie in memory."""
    batch, _, num_tokens, _ = heads.shape
    rows = heads.permute(1, 3, 0, 2)
    if num_tokens > 1 and (
        rows.is_contiguous() or (is_plain_eager_on_cpu(heads) and has_rows_apart(heads))
    ):
        columns = rows.flatten(0, 1).flatten(1)
        if _is_by_hand(linear, columns.t()):
            joined = _FromColumns.apply(columns, linear.weight, linear.bias)
        else:
            joined = linear(
                columns.t()
            )  # the transpose of a matrix, which a product takes as it is
        return joined.unflatten(0, (batch, num_tokens))
    return linear(heads.transpose(1, 2).flatten(2))


def _apart(num_tokens: int) -> int:
    """How many numbers rows of so many tokens are apart, as the cache likes it."""
    apart = -(-num_tokens // ALIGNED_TOKENS) * ALIGNED_TOKENS
    return apart + (APART if apart % ALIASED == 0 else 0)


def _new_columns(size: int, num_tokens: int, like: Tensor) -> Columns:
    return like.new_empty(size, _apart(num_tokens))[:, :num_tokens]


def _is_by_hand(linear: nn.Module, given: Tensor) -> TypeGuard[nn.Linear]:
    """Whether a plain map of as many tokens has its gradient written out: where that is worth it, of mere numbers."""
    if not is_plain_eager_on_cpu(given) or not is_plain(linear) or torch.is_autocast_enabled("cpu"):
        return False
    tensors = [given, *linear.parameters()]
    are_numbers = all(
        type(one) in (Tensor, Parameter) and one.dtype == given.dtype for one in tensors
    )
    is_worth_it = given.shape[:-1].numel() >= ALIASED
    return are_numbers and is_worth_it and is_plain_eager_on_cpu(*tensors)


class _ToColumns(Function):
    """W xᵀ + b of every W and b, whose rows are apart."""

    @staticmethod
    def forward(ctx, tokens, *maps):
        weights, biases = maps[::2], maps[1::2]
        ctx.save_for_backward(tokens, *weights)
        mapped = [_new_columns(len(one), len(tokens), tokens) for one in weights]
        for columns, weight, bias in zip(mapped, weights, biases, strict=True):
            if bias is None:
                torch.mm(weight, tokens.t(), out=columns)
            else:
                torch.addmm(bias[:, None], weight, tokens.t(), out=columns)
        return tuple(mapped)

    @staticmethod
    @by_hand
    def backward(ctx, *grad_outputs):
        (tokens, *weights), (needs_tokens, *needs) = ctx.saved_tensors, ctx.needs_input_grad
        of_tokens, of_maps = None, []
        for at, (gradient, weight) in enumerate(zip(grad_outputs, weights, strict=True)):
            columns = gradient.t()
            if needs_tokens:
                of_tokens = (
                    columns @ weight if of_tokens is None else of_tokens.addmm_(columns, weight)
                )
            of_maps.append(gradient @ tokens if needs[2 * at] else None)
            of_maps.append(gradient.sum(dim=1) if needs[2 * at + 1] else None)
        return of_tokens, *of_maps


class _FromColumns(Function):
    """xᵀ Wᵀ + b, with the gradient of x in rows that are apart."""

    @staticmethod
    def forward(ctx, columns, weight, bias):
        ctx.save_for_backward(columns, weight)
        return nn.functional.linear(columns.t(), weight, bias)

    @staticmethod
    @by_hand
    def backward(ctx, *grad_outputs):
        (gradient,), (columns, weight) = grad_outputs, ctx.saved_tensors
        needs_columns, needs_weight, needs_bias = ctx.needs_input_grad
        of_columns = None
        if needs_columns and torch.is_grad_enabled():
            of_columns = weight.t() @ gradient.t()
        elif needs_columns:
            of_columns = _new_columns(columns.shape[0], columns.shape[1], columns)
            torch.mm(weight.t(), gradient.t(), out=of_columns)
        of_weight = gradient.t() @ columns.t() if needs_weight else None
        return of_columns, of_weight, gradient.sum(dim=0) if needs_bias else None
