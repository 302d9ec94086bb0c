"""Triton kernels on tensors: sizes of blocks, order in memory, and the kernels of an attention and its gradients."""

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports]
from torch import Tensor

from teka.functional.backend.gpu.two_sided import key_gradients, query_gradients, sum_over_keys, weighted_means

# Tokens that a program sums up before it writes its sums: of heads of 64 these are then an eighth of what is read.
SEGMENT_TOKENS = 256
# The smallest matrix that is multiplied; half of it, lengths of pairs, must not be smaller.
LEAST_SIZE = 16


@dataclass(frozen=True)
class Map:
    """What kernels are compiled for, and numbers of it.

    Args:
        kernel: φ by its name, or "identity" for features that are made already.
        form: What positions do: "none", "rotary" for rotations by angles, "fourier" for products with waves.
        scale: Of φ of "elu".
        epsilon: ε of the rectified ones.
        share: λ of "rotary", the weight of lengths in the denominator.
    """

    kernel: str
    form: str
    scale: float
    epsilon: float
    share: float


class Heads:
    """Queries, keys and values in an order in memory that kernels take, with the sizes that these are launched with."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_mask: Tensor | None,
        query_places: Tensor | None,
        key_places: Tensor | None,
        map: Map,
    ) -> None:
        self.query, self.key, self.value = (dense(one) for one in (query, key, value))
        self.map, self.masked = map, key_mask is not None
        self.key_mask = self.query if key_mask is None else key_mask.contiguous().view(torch.int8)
        self.query_places, self.key_places = (
            self.query[..., :0] if one is None else one.contiguous() for one in (query_places, key_places)
        )
        self.rows = query.shape[0] * query.shape[1]
        self.num_places = self.query_places.shape[-1]
        self.num_waves = self.num_places if map.form == "fourier" else 1
        is_rotary = map.form == "rotary"
        self.size = max(triton.next_power_of_2(query.shape[-1]), LEAST_SIZE * (1 + is_rotary))
        self.channels = max(triton.next_power_of_2(value.shape[-1]), LEAST_SIZE)
        # Numbers of 16 bits are no more precise than what tf32 takes of features; AMD's matrix units have no tf32.
        self.is_narrow = query.dtype != torch.float32 and torch.version.hip is None
        largest = max(self.size, self.channels)
        # Compiled for compute capability 8.0, more tokens or fewer warps leave more of a block outside of registers.
        self.block = 32 if self.is_narrow and largest <= 64 else 16
        self.num_warps = (4 if largest <= 32 else 8) * (1 if self.is_narrow else 2)
        self.length = self.size * (self.channels + 1) + self.size // 2 * is_rotary

    def launch(self, compute: Any, grid: tuple[int, int, int], *given: object, **more: object) -> None:
        """A kernel with a program for each place of a grid, compiled for these heads."""
        width = self.size // 2 if self.map.form == "rotary" else triton.next_power_of_2(max(self.num_places, 16))
        compute[grid](
            *given,
            **more,
            kernel=self.map.kernel,
            form=self.map.form,
            precision="tf32" if self.is_narrow else "ieee",
            block=self.block,
            size=self.size,
            channels=self.channels,
            width=width,
            length=self.length,
            num_warps=self.num_warps,
        )

    def numbers(self, tokens: Tensor) -> tuple[int | float, ...]:
        """Sizes of a sequence and its heads, and what φ takes."""
        dim, dim_value = self.query.shape[-1], self.value.shape[-1]
        sizes = tokens.shape[1], tokens.shape[2], dim, dim_value, self.num_places, self.num_waves
        return *sizes, math.sqrt(self.map.scale), self.map.epsilon / math.sqrt(dim)

    def grid(self, tokens: Tensor, size: int, waves: int = 1) -> tuple[int, int, int]:
        """One program for so many tokens of a head, and for each wave."""
        return self.rows, triton.cdiv(tokens.shape[2], size), waves

    def empty(self, *sizes: int) -> Tensor:
        """Numbers in float32 for every head of every sample, yet to be written."""
        return self.query.new_empty(self.rows, *sizes, dtype=torch.float32)

    def new_place_gradients(self) -> tuple[Tensor, Tensor]:
        """Gradients of angles or waves of queries and keys, yet to be written, for every sample."""
        batch, heads = self.query.shape[:2]
        of_query, of_key = (
            self.empty(one.shape[2], self.num_places).unflatten(0, (batch, heads)) for one in (self.query, self.key)
        )
        return of_query, of_key


def dense(tokens: Tensor) -> Tensor:
    """The tensor, or a copy where a token's numbers lie apart, or tokens share theirs."""
    is_dense = tokens.stride(-1) == 1 and torch.empty_like(tokens).stride() == tokens.stride()
    return tokens if is_dense else tokens.contiguous()


def steps(tokens: Tensor) -> tuple[int, ...]:
    """From one sample, head and token to the next."""
    return tokens.stride()[:3]


def place_steps(places: Tensor) -> tuple[int, int]:
    """From one sample's and head's places to the next; those of all samples may be the same."""
    return (places.stride(0) if places.shape[0] > 1 else 0), places.stride(1)


def new_output(query: Tensor, value: Tensor) -> Tensor:
    """A tensor for outputs, in memory as the queries are where it has their shape."""
    shape = *query.shape[:3], value.shape[-1]
    return torch.empty_like(query) if query.shape == shape else query.new_empty(shape)


def key_sums(heads: Heads, segment: int) -> tuple[Tensor, Tensor]:
    """Sums of every segment of keys, (rows, waves, segments, length), and their exponents."""
    key, value, places = heads.key, heads.value, heads.key_places
    grid = heads.grid(key, segment, heads.num_waves)
    sums, peaks = heads.empty(heads.num_waves, grid[1], heads.length), heads.empty(grid[1])
    tensors = key, value, heads.key_mask, places, sums, peaks
    strides = *steps(key), *steps(value), *place_steps(places)
    heads.launch(sum_over_keys, grid, *tensors, *strides, *heads.numbers(key), segment, masked=heads.masked)
    return sums, peaks


def two_sided(heads: Heads) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Outputs, 1/D_i, the sums over all keys, (rows, waves, length), over 2^peak, and the peaks."""
    query, places = heads.query, heads.query_places
    sums, peaks = key_sums(heads, SEGMENT_TOKENS)
    peak = peaks.amax(dim=-1)
    sums = (torch.exp2(peaks - peak[:, None])[:, None, None] @ sums)[:, :, 0]
    output, inverse = new_output(query, heads.value), heads.empty(query.shape[2])
    tensors = query, places, sums, output, inverse
    strides = *steps(query), *steps(output), *place_steps(places)
    grid = heads.grid(query, heads.block)
    heads.launch(weighted_means, grid, *tensors, *strides, *heads.numbers(query), heads.map.share)
    return output, inverse, sums, peak


def two_sided_gradients(
    heads: Heads, gradient: Tensor, output: Tensor, inverse: Tensor, sums: Tensor, peak: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of queries, keys, values and the places of queries and of keys, from that of outputs."""
    query, key, value, places = heads.query, heads.key, heads.value, heads.query_places
    if gradient.stride() != output.stride():
        gradient = torch.empty_like(output).copy_(gradient)
    of_query, of_key, of_value = (torch.empty_like(one) for one in (query, key, value))
    of_places, of_key_places = heads.new_place_gradients()
    grid = heads.grid(query, SEGMENT_TOKENS, heads.num_waves)
    of_sums = heads.empty(heads.num_waves, grid[1], heads.length)
    tensors = query, places, sums, output, inverse, gradient, of_query, of_places, of_sums
    strides = *steps(query), *steps(output), *place_steps(places)
    heads.launch(query_gradients, grid, *tensors, *strides, *heads.numbers(query), SEGMENT_TOKENS, heads.map.share)
    of_sums, places = of_sums.sum(dim=2), heads.key_places
    tensors = key, value, heads.key_mask, places, of_sums, peak, of_key, of_value, of_key_places
    strides = *steps(key), *steps(value), *place_steps(places)
    numbers, grid = heads.numbers(key), heads.grid(key, heads.block)
    heads.launch(key_gradients, grid, *tensors, *strides, *numbers, heads.map.share, masked=heads.masked)
    return of_query, of_key, of_value, of_places, of_key_places
