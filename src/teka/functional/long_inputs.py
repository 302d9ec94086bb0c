"""Linear attention of long sequences, computed in chunks of tokens to limit the memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from teka._compat import replace
from teka.execution_mode import ExecutionMode, execution_mode
from teka.functional.backends.attention_sums import AttentionFeatures
from teka.functional.backends.linear import (
    LinearState,
    linear_attention_sums,
    make_linear_attention_inputs,
)
from teka.functional.kernels.content_kernel import FeatureKernel
from teka.functional.positions import Positions
from teka.functional.relative.relative_kernel import RelativeKernel
from teka.functional.shapes import KeyMask, Keys, Outputs, Queries, Values
from teka.precision import backward_without_autocast

# Number of features of all queries from which tokens are processed in chunks: 256 MiB of float32.
LONG_ELEMENTS = 2**26
# Tokens of one chunk.
CHUNK_TOKENS = 4096


@dataclass(frozen=True)
class ChunkedLinearAttention:
    """Linear attention of a long sequence, computed in chunks of tokens to limit the memory.

    The backward pass computes each chunk again, which takes about a third more time. Second
    derivatives are not supported.

    Args:
        kernel: Content kernel.
        relative: Relative kernel, or None.
        positions: Positions of the tokens.
        scale: Factor of the inner products qᵀk.
        key_mask: True for keys that are kept, or None to keep all.
        is_causal: True if queries attend to no later keys.
    """

    kernel: FeatureKernel
    relative: RelativeKernel | None
    positions: Positions
    scale: float
    key_mask: KeyMask
    is_causal: bool

    def needs_chunks(self, query: Queries) -> bool:
        """Return True if attention should be computed in chunks of tokens to limit the memory.

        The result is True if the features of all queries need much memory, and the kernels and the
        execution mode support chunks.
        """
        kernel, relative = self.kernel, self.relative
        num_features = kernel.num_features(query.shape[-1])
        if relative is not None:
            num_features *= relative.feature_multiplier
        if execution_mode(query) is not ExecutionMode.EAGER:
            return False
        if query[..., 0].numel() * num_features < LONG_ELEMENTS:
            return False
        if kernel.normalizes_by_count or self.positions.num_prefix_tokens:
            return False
        if any(getattr(kernel, name) is not None for name in kernel.statistics_fields):
            return False
        return relative is None or relative.can_add_positions_to_features

    def attend(self, query: Queries, key: Keys, value: Values) -> Outputs:
        """Return the outputs of all queries."""
        return _ChunkedAttention.apply(self, query, key, value, *self.trainable_tensors())

    def trainable_tensors(self) -> list[Tensor]:
        """Return the parameters of the kernels and positions that require a gradient."""
        owners = (self.kernel, self.relative, self.positions, self.positions.key_positions)
        tensors = {
            id(field): field
            for owner in owners
            if owner is not None
            for field in vars(owner).values()
            if isinstance(field, Tensor) and field.requires_grad
        }
        return list(tensors.values())

    def sum_key_chunk(self, key: Keys, value: Values, rows: slice) -> LinearState:
        """Compute the sums over a chunk of keys, from which linear attention computes its outputs.

        `rows` is the range of the chunk in the sequence.
        """
        # Causal features have a log scale for each key. A factor of all keys would be different in
        # every chunk.
        tokens = make_linear_attention_inputs(
            self.kernel,
            key[:, :, :0],
            key.contiguous(),
            value,
            scale=self.scale,
            key_mask=None if self.key_mask is None else self.key_mask[:, rows],
            is_causal=True,
        )
        vectors = self._add_positions(tokens.key_features, rows, is_key=True)
        return LinearState.from_keys(vectors, value, tokens.log_scale)

    def attend_query_chunk(self, query: Queries, rows: slice, state: LinearState) -> Outputs:
        """Compute linear attention for a chunk of queries from the sums over all keys.

        `rows` is the range of the chunk in the sequence.
        """
        features = self.kernel.query_features(query.contiguous(), scale=self.scale)
        sums = state.weighted_sums(self._add_positions(features, rows, is_key=False))
        return sums.normalize(nonnegative=self.kernel.nonnegative)

    def attend_causal_chunk(
        self, query: Queries, key: Keys, value: Values, rows: slice, state: LinearState | None
    ) -> tuple[Outputs, LinearState]:
        """Compute causal linear attention for a chunk of tokens, and update the sums over keys.

        The updated sums include all keys up to the end of the chunk. `rows` is the range of the
        chunk in the sequence.
        """
        tokens = make_linear_attention_inputs(
            self.kernel,
            query.contiguous(),
            key.contiguous(),
            value,
            scale=self.scale,
            key_mask=None if self.key_mask is None else self.key_mask[:, rows],
            is_causal=True,
        )
        query_vectors = self._add_positions(tokens.query_features, rows, is_key=False)
        key_vectors = self._add_positions(tokens.key_features, rows, is_key=True)
        sums = linear_attention_sums(tokens, query_vectors, key_vectors)
        new_state = LinearState.from_keys(key_vectors, value, tokens.log_scale)
        if state is not None:
            sums = sums + state.weighted_sums(query_vectors)
            new_state = state + new_state
        return sums.normalize(nonnegative=self.kernel.nonnegative), new_state

    def _add_positions(self, features: Tensor, rows: slice, *, is_key: bool) -> AttentionFeatures:
        if self.relative is None:
            return AttentionFeatures(features)
        positions = self.positions.key_positions if is_key else self.positions
        points = positions.coordinates(features.device)[..., rows, :]
        return self.relative.add_positions_to_features(
            features, Positions(points=points), is_key=is_key
        )


class _ChunkedAttention(Function):
    """Autograd function of linear attention that processes a long sequence in chunks of tokens.

    It saves only its inputs and sums over keys for the backward pass. Outputs and gradients are
    allocated once, and each chunk is written into them, because concatenating the chunks at the end
    would need twice the memory.
    """

    @staticmethod
    def forward(
        ctx: Any,
        attention: ChunkedLinearAttention,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        output = _allocate_token_vectors(query, value.shape[-1])
        state: LinearState | None = None
        states = []
        for rows in _chunk_slices(key):
            states.append(state)
            if attention.is_causal:
                chunk = query[:, :, rows], key[:, :, rows], value[:, :, rows]
                output[:, :, rows], state = attention.attend_causal_chunk(*chunk, rows, state)
            else:
                added = attention.sum_key_chunk(key[:, :, rows], value[:, :, rows], rows)
                state = added if state is None else state + added
        if not attention.is_causal:
            assert state is not None
            states = [state]
            for rows in _chunk_slices(query):
                output[:, :, rows] = attention.attend_query_chunk(query[:, :, rows], rows, state)
        ctx.attention, ctx.states = attention, states
        ctx.save_for_backward(query, key, value, *parameters)
        return output

    @staticmethod
    @backward_without_autocast
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "Linear attention with this many tokens does not support second derivatives. "
                "Use create_graph=False or fewer tokens."
            )
        attention, states = ctx.attention, ctx.states
        query, key, value, *parameters = ctx.saved_tensors
        grad_query, grad_key, grad_value = (
            _allocate_token_vectors(tensor, tensor.shape[-1]) for tensor in (query, key, value)
        )
        grad_parameters = [torch.zeros_like(parameter) for parameter in parameters]
        grad_state: list[Tensor] = []

        def gradients(
            outputs: Sequence[Tensor], grad_outputs: Sequence[Tensor], inputs: Sequence[Tensor]
        ) -> Sequence[Tensor]:
            results = torch.autograd.grad(
                outputs, [*inputs, *parameters], grad_outputs, materialize_grads=True
            )
            _accumulate(grad_parameters, results[len(inputs) :])
            return results[: len(inputs)]

        if attention.is_causal:
            for rows, state in reversed(list(zip(_chunk_slices(key), states, strict=True))):
                with torch.enable_grad():
                    chunk = [_leaf(tensor[:, :, rows]) for tensor in (query, key, value)]
                    state = None if state is None else _leaf_state(state)
                    output, new_state = attention.attend_causal_chunk(*chunk, rows, state)
                grads = gradients(
                    [output, *new_state.all_sums][: 1 + len(grad_state)],
                    [grad_output[:, :, rows], *grad_state],
                    [*chunk, *(() if state is None else state.all_sums)],
                )
                grad_query[:, :, rows], grad_key[:, :, rows], grad_value[:, :, rows] = grads[:3]
                grad_state = list(grads[3:])
        else:
            state = _leaf_state(states[0])
            grad_state = [torch.zeros_like(sums) for sums in state.all_sums]
            for rows in _chunk_slices(query):
                with torch.enable_grad():
                    chunk = _leaf(query[:, :, rows])
                    output = attention.attend_query_chunk(chunk, rows, state)
                grads = gradients([output], [grad_output[:, :, rows]], [chunk, *state.all_sums])
                grad_query[:, :, rows] = grads[0]
                _accumulate(grad_state, grads[1:])
            for rows in _chunk_slices(key):
                with torch.enable_grad():
                    chunk = [_leaf(tensor[:, :, rows]) for tensor in (key, value)]
                    added = attention.sum_key_chunk(*chunk, rows)
                    # The sums are divided by the peak of all keys.
                    empty = replace(added.empty_copy(), log_peak=state.log_peak)
                    added = added if state.log_peak is None else empty + added
                grads = gradients(added.all_sums, grad_state, chunk)
                grad_key[:, :, rows], grad_value[:, :, rows] = grads
        return None, grad_query, grad_key, grad_value, *grad_parameters


def _chunk_slices(tokens: Tensor) -> Iterator[slice]:
    num_tokens = tokens.shape[2]
    for start in range(0, num_tokens, CHUNK_TOKENS):
        yield slice(start, min(start + CHUNK_TOKENS, num_tokens))


def _allocate_token_vectors(like: Tensor, size: int) -> Tensor:
    """Allocate a tensor with a vector of length `size` for each token and head of `like`.

    In memory, tokens come before heads, so that a chunk of tokens is contiguous.
    """
    batch, heads, num_tokens, _ = like.shape
    return like.new_empty(batch, num_tokens, heads, size).transpose(1, 2)


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_()


def _leaf_state(state: LinearState) -> LinearState:
    values, *weights = map(_leaf, state.all_sums)
    return LinearState(values, tuple(weights), state.log_peak)


def _accumulate(totals: Sequence[Tensor], added: Sequence[Tensor]) -> None:
    for total, tensor in zip(totals, added, strict=True):
        total += tensor
