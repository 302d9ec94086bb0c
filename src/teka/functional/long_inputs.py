"""Linear attention of long inputs in chunks of tokens, with memory that does not grow beyond inputs and outputs."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from teka.functional.backends import LOWEST_LOG_SCALE, FeatureInputs, WeightedSums, checkpointed
from teka.functional.backends.feature_sums import LinearFeatures, linear_sums
from teka.functional.backends.linear import running_maximum
from teka.functional.kernels.base import FeatureKernel
from teka.functional.positions import Positions
from teka.functional.relative.base import Relative
from teka.functional.shapes import KeyMask, Keys, Outputs, Queries, Values

# Elements of the queries from which tokens are processed in chunks: 512 MiB of float32. Each chunk is computed again in
# the backward pass, which takes about a third more time.
LONG_ELEMENTS = 2**27
# Tokens of one chunk.
CHUNK_TOKENS = 4096


@dataclass(frozen=True)
class LongAttention:
    """Linear attention of one call, evaluated chunk by chunk."""

    kernel: FeatureKernel
    relative: Relative | None
    positions: Positions
    scale: float
    is_causal: bool

    def is_needed(self, query: Queries) -> bool:
        """Return True if the input is long and the kernels allow chunks."""
        if torch.compiler.is_compiling() or query.numel() < LONG_ELEMENTS:
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
        state: tuple[Tensor, ...] = ()
        query_chunks = _chunks(query, self.positions)
        key_chunks = _chunks(key, self.positions.of_keys)
        values = value.split(CHUNK_TOKENS, dim=2)
        masks = [None] * len(values) if key_mask is None else key_mask.split(CHUNK_TOKENS, dim=1)
        if self.is_causal:
            tokens = zip(query_chunks, key_chunks, values, masks, strict=True)
            for (queries, places), (keys, _), chunk_values, mask in tokens:
                output, *new_state = checkpointed(
                    self._causal_chunk, queries, keys, chunk_values, mask, places, *state
                )
                outputs.append(output)
                state = tuple(new_state)
            return torch.cat(outputs, dim=2)
        for (keys, places), chunk_values, mask in zip(key_chunks, values, masks, strict=True):
            state = checkpointed(self._add_keys, keys, chunk_values, mask, places, *state)
        for queries, places in query_chunks:
            outputs.append(checkpointed(self._read, queries, places, *state))
        return torch.cat(outputs, dim=2)

    def _add_keys(
        self, key: Keys, value: Values, mask: KeyMask, places: Positions, *state: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the state after a chunk of keys: its largest log scale, Σ_j key_j value_jᵀ and the denominators'."""
        features, log_scale = self._key_features(key, mask)
        if log_scale is None:
            peak = key.new_zeros(*key.shape[:2], 1, 1)
        else:
            peak = log_scale.detach().amax(dim=-1)[..., None, None]
            features = features * torch.exp(log_scale[..., None] - peak)
        vectors = self._vectors(features, places, is_key=True)
        sums = [vectors.numerator.transpose(-2, -1) @ value]
        terms = vectors.denominator or ((1.0, vectors.numerator),)
        for _, term in terms:
            sums.append(term.sum(dim=2)[..., None])
        if not state:
            return peak, *sums
        old_peak, *old_sums = state
        new_peak = torch.maximum(old_peak, peak)
        old_factor = torch.exp(old_peak - new_peak)
        factor = torch.exp(peak - new_peak)
        added = [old_factor * old + factor * new for old, new in zip(old_sums, sums, strict=True)]
        return new_peak, *added

    def _read(self, query: Queries, places: Positions, *state: Tensor) -> Outputs:
        features = self.kernel.query_features(query.contiguous(), scale=self.scale)
        vectors = self._vectors(features, places, is_key=False)
        return _read_state(vectors, state).divide(nonnegative=self.kernel.nonnegative)

    def _causal_chunk(
        self,
        query: Queries,
        key: Keys,
        value: Values,
        mask: KeyMask,
        places: Positions,
        *state: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return the outputs of a chunk of tokens and the state after it."""
        query_features = self.kernel.query_features(query.contiguous(), scale=self.scale)
        key_features, log_scale = self._key_features(key, mask)
        tokens = FeatureInputs(
            query, query_features, key_features, value, log_scale, is_causal=True
        )
        query_vectors = self._vectors(query_features, places, is_key=False)
        key_vectors = self._vectors(key_features, places, is_key=True)
        sums = linear_sums(tokens, query_vectors, key_vectors)
        if state:
            peak = None if log_scale is None else running_maximum(log_scale.detach())
            within = WeightedSums(sums.numerator, sums.denominator, peak)
            sums = within + _read_state(query_vectors, state)
        output = sums.divide(nonnegative=self.kernel.nonnegative)
        return output, *self._add_keys(key, value, mask, places, *state)

    def _key_features(self, key: Keys, mask: KeyMask) -> tuple[Tensor, Tensor | None]:
        features, log_scale = self.kernel.causal_key_features(
            key.contiguous(), scale=self.scale, key_mask=mask
        )
        if log_scale is not None and mask is not None:
            log_scale = log_scale.masked_fill(~mask[:, None], LOWEST_LOG_SCALE)
        return features, log_scale

    def _vectors(self, features: Tensor, places: Positions, *, is_key: bool) -> LinearFeatures:
        if self.relative is None:
            return LinearFeatures(features)
        return self.relative.linear_features(features, places, is_key=is_key)


def _read_state(vectors: LinearFeatures, state: tuple[Tensor, ...]) -> WeightedSums:
    peak, numerator, *denominators = state
    terms = vectors.denominator or ((1.0, vectors.numerator),)
    totals = [
        weight * (term @ total)[..., 0]
        for (weight, term), total in zip(terms, denominators, strict=True)
    ]
    return WeightedSums(vectors.numerator @ numerator, sum(totals[1:], totals[0]), peak[..., 0])


def _chunks(tokens: Tensor, positions: Positions) -> Iterator[tuple[Tensor, Positions]]:
    """Split tokens and their positions. Split and not sliced: the gradient of a slice is as long as the whole."""
    points = positions.places(tokens.device) if positions.is_known else None
    for index, chunk in enumerate(tokens.split(CHUNK_TOKENS, dim=2)):
        if points is None:
            yield chunk, Positions()
        else:
            start = index * CHUNK_TOKENS
            yield chunk, Positions(points=points[..., start : start + chunk.shape[2], :])
