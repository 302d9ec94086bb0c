"""Linear attention of long inputs in chunks of tokens, with little memory beyond that of inputs and outputs."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from teka.functional.backends.feature_chunks import checkpointed
from teka.functional.backends.feature_sums import featured, linear_sums
from teka.functional.backends.linear import LinearFeatures, LinearState
from teka.functional.kernels.base import FeatureKernel
from teka.functional.positions import Positions
from teka.functional.relative.base import Relative
from teka.functional.shapes import KeyMask, Keys, Outputs, Queries, Values

# Number of features of all queries from which tokens are processed in chunks: 256 MiB of float32. Each chunk is
# computed again in the backward pass, which takes about a third more time.
LONG_ELEMENTS = 2**26
# Tokens of one chunk.
CHUNK_TOKENS = 4096


@dataclass(frozen=True)
class LongAttention:
    """Linear attention in chunks of tokens.

    Args:
        kernel: Content kernel.
        relative: Relative kernel, or None.
        positions: Positions of the tokens.
        scale: Factor of the inner products qᵀk.
        is_causal: True if queries attend to no later keys.
    """

    kernel: FeatureKernel
    relative: Relative | None
    positions: Positions
    scale: float
    is_causal: bool

    def is_needed(self, query: Queries) -> bool:
        """Return True if the features are large and the kernels support chunks."""
        num_features = self.kernel.num_features(query.shape[-1])
        if self.relative is not None:
            num_features *= self.relative.num_waves
        if torch.compiler.is_compiling() or query[..., 0].numel() * num_features < LONG_ELEMENTS:
            return False
        kernel = self.kernel
        if kernel.normalizes_by_count or self.positions.num_prefix_tokens:
            return False
        if any(getattr(kernel, name) is not None for name in kernel.fitted_tensors):
            return False
        return self.relative is None or self.relative.has_linear_features

    def attend(self, query: Queries, key: Keys, value: Values, key_mask: KeyMask) -> Outputs:
        """Return the outputs of all queries."""
        outputs = []
        state: LinearState | None = None
        query_chunks = _chunks(query, self.positions)
        key_chunks = _chunks(key, self.positions.of_keys)
        values = value.split(CHUNK_TOKENS, dim=2)
        masks = [None] * len(values) if key_mask is None else key_mask.split(CHUNK_TOKENS, dim=1)
        if self.is_causal:
            chunks = zip(query_chunks, key_chunks, values, masks, strict=True)
            for (queries, positions), (keys, _), chunk_values, mask in chunks:
                output, state = checkpointed(
                    self._attend_chunk, queries, keys, chunk_values, mask, positions, state
                )
                outputs.append(output)
            return torch.cat(outputs, dim=2)
        for (keys, positions), chunk_values, mask in zip(key_chunks, values, masks, strict=True):
            state = checkpointed(self._add_keys, keys, chunk_values, mask, positions, state)
        for queries, positions in query_chunks:
            outputs.append(checkpointed(self._read, queries, positions, state))
        return torch.cat(outputs, dim=2)

    def _add_keys(
        self,
        key: Keys,
        value: Values,
        mask: KeyMask,
        positions: Positions,
        state: LinearState | None,
    ) -> LinearState:
        """Return the state with the keys of a chunk added."""
        # Causal features have a log scale for each key. A factor of all keys would be different in every chunk.
        tokens = featured(
            self.kernel,
            key[:, :, :0],
            key.contiguous(),
            value,
            scale=self.scale,
            key_mask=mask,
            is_causal=True,
        )
        vectors = self._vectors(tokens.key_features, positions, is_key=True)
        added = LinearState.from_keys(vectors, value, tokens.log_scale)
        return added if state is None else state + added

    def _read(self, query: Queries, positions: Positions, state: LinearState) -> Outputs:
        """Return the outputs of a chunk of queries."""
        features = self.kernel.query_features(query.contiguous(), scale=self.scale)
        sums = state.read(self._vectors(features, positions, is_key=False))
        return sums.divide(nonnegative=self.kernel.nonnegative)

    def _attend_chunk(
        self,
        query: Queries,
        key: Keys,
        value: Values,
        mask: KeyMask,
        positions: Positions,
        state: LinearState | None,
    ) -> tuple[Outputs, LinearState]:
        """Return the causal outputs of a chunk of tokens, and the state after the chunk."""
        tokens = featured(
            self.kernel,
            query.contiguous(),
            key.contiguous(),
            value,
            scale=self.scale,
            key_mask=mask,
            is_causal=True,
        )
        query_vectors = self._vectors(tokens.query_features, positions, is_key=False)
        key_vectors = self._vectors(tokens.key_features, positions, is_key=True)
        sums = linear_sums(tokens, query_vectors, key_vectors)
        new_state = LinearState.from_keys(key_vectors, value, tokens.log_scale)
        if state is not None:
            sums = sums + state.read(query_vectors)
            new_state = state + new_state
        return sums.divide(nonnegative=self.kernel.nonnegative), new_state

    def _vectors(self, features: Tensor, positions: Positions, *, is_key: bool) -> LinearFeatures:
        if self.relative is None:
            return LinearFeatures(features)
        return self.relative.linear_features(features, positions, is_key=is_key)


def _chunks(tokens: Tensor, positions: Positions) -> Iterator[tuple[Tensor, Positions]]:
    """Split tokens and their positions. Split and not sliced: the gradient of a slice is as long as the whole."""
    points = positions.places(tokens.device) if positions.is_known else None
    for index, chunk in enumerate(tokens.split(CHUNK_TOKENS, dim=2)):
        if points is None:
            yield chunk, Positions()
        else:
            start = index * CHUNK_TOKENS
            yield chunk, Positions(points=points[..., start : start + chunk.shape[2], :])
