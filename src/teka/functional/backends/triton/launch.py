"""Triton kernels on tensors: what they are compiled for, sizes of blocks, and order in memory."""

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from teka.functional.backends.triton import IS_INTERPRETED

# Tokens that a program goes through before it writes its sums, at least: of heads of 64 these are then an eighth of
# what is read. Causally, that many; two-sided, more where that many programs would still fill a GPU.
SEGMENT_TOKENS = 256
PROGRAMS = 1024
# How products of a type are taken: of bfloat16 with 11 bits, of others by three such products, which give float32's.
PRECISION = {
    torch.float32: "tf32x3",
    torch.float16: "tf32x3",
    torch.bfloat16: "ieee" if IS_INTERPRETED else "tf32",
}
# Tokens of a block and warps of a kernel, by its name, the type, and whether there are more than 32 numbers of a head;
# of the others 4 warps and `Heads.block` tokens. Measured on an H200.
TILES: dict[tuple[str, torch.dtype, bool], tuple[int, int]] = {
    ("weighted_means", torch.bfloat16, False): (64, 8),
    ("weighted_means", torch.bfloat16, True): (64, 8),
    ("query_gradients", torch.bfloat16, True): (64, 8),
}
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
        is_causal: Whether queries see no later keys.
    """

    kernel: str
    form: str
    scale: float
    epsilon: float
    share: float
    is_causal: bool


class Heads:
    """Queries, keys and values in an order in memory that kernels take, with the sizes that these are launched with."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_mask: Tensor | None,
        exponents: Tensor | None,
        query_places: Tensor | None,
        key_places: Tensor | None,
        map: Map,
    ) -> None:
        self.query, self.key, self.value = (dense(one) for one in (query, key, value))
        self.map, self.masked = map, key_mask is not None
        self.key_mask = self.query if key_mask is None else key_mask.contiguous().view(torch.int8)
        self.exponents = self.query if exponents is None else exponents.contiguous()
        self.query_places, self.key_places = (
            self.query[..., :0] if one is None else one.contiguous()
            for one in (query_places, key_places)
        )
        self.rows = query.shape[0] * query.shape[1]
        self.num_places = self.query_places.shape[-1]
        self.num_waves = self.num_places if map.form == "fourier" else 1
        is_rotary = map.form == "rotary"
        self.size = max(triton.next_power_of_2(query.shape[-1]), LEAST_SIZE * (1 + is_rotary))
        self.channels = max(triton.next_power_of_2(value.shape[-1]), LEAST_SIZE)
        self.is_large = max(self.size, self.channels) > 32
        # In 16 bits Triton 3.6 multiplies wrongly what was rotated if there are fewer than 32 tokens.
        few = 16 if query.dtype == torch.float32 else 32
        self.block = 64 if query.dtype == torch.bfloat16 and not map.is_causal else few
        # Sums of all waves are too many for registers: causally they are not carried on from one block to the next.
        self.segment = (
            self.block
            if map.is_causal and map.form == "fourier"
            else max(SEGMENT_TOKENS, self.block)
        )
        self.length = self.size * (self.channels + 1) + self.size // 2 * is_rotary

    def launch(
        self, compute: Any, grid: tuple[int, int, int], *given: object, **more: object
    ) -> None:
        """A kernel with a program for each place of a grid, compiled for these heads."""
        precision = PRECISION[self.query.dtype]
        block, num_warps = TILES.get(
            (compute.__name__, self.query.dtype, self.is_large), (self.block, 4)
        )
        width = (
            self.size // 2
            if self.map.form == "rotary"
            else triton.next_power_of_2(max(self.num_places, 16))
        )
        run(
            compute,
            grid,
            *given,
            **more,
            kernel=self.map.kernel,
            form=self.map.form,
            precision=precision,
            block=block,
            size=self.size,
            channels=self.channels,
            width=width,
            length=self.length,
            whole=(self.size, self.channels) == (self.query.shape[-1], self.value.shape[-1]),
            num_warps=num_warps,
            num_stages=2 if precision == "tf32x3" else most_stages(self.query.device),
        )

    def numbers(self, tokens: Tensor) -> tuple[int | float, ...]:
        """Sizes of a sequence and its heads, and what φ takes."""
        dim, dim_value = self.query.shape[-1], self.value.shape[-1]
        sizes = tokens.shape[1], tokens.shape[2], dim, dim_value, self.num_places, self.num_waves
        return *sizes, math.sqrt(self.map.scale), self.map.epsilon / math.sqrt(dim)

    def grid(self, tokens: Tensor, size: int, waves: int = 1) -> tuple[int, int, int]:
        """One program for so many tokens of a head, and for each wave."""
        return self.rows, triton.cdiv(tokens.shape[2], size), waves

    def long_segment(self, tokens: Tensor) -> int:
        """Tokens that a program goes through where any number will do."""
        return max(
            self.segment, triton.next_power_of_2(triton.cdiv(self.rows * tokens.shape[2], PROGRAMS))
        )

    def empty(self, *sizes: int) -> Tensor:
        """Numbers in float32 for every head of every sample, yet to be written."""
        return self.query.new_empty(self.rows, *sizes, dtype=torch.float32)

    def new_place_gradients(self) -> tuple[Tensor, Tensor]:
        """Gradients of angles or waves of queries and keys, yet to be written, for every sample."""
        batch, heads = self.query.shape[:2]
        of_query, of_key = (
            self.empty(one.shape[2], self.num_places).unflatten(0, (batch, heads))
            for one in (self.query, self.key)
        )
        return of_query, of_key


@functools.cache
def most_stages(device: torch.device) -> int:
    """How many steps of a loop are loaded ahead, for which a multiprocessor must have the memory."""
    found = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return 3 if getattr(found, "shared_memory_per_block_optin", 0) >= 2**17 else 2


def run(compute: Any, grid: tuple[int, ...], *given: object, **compiled: object) -> None:
    """A kernel with a program for each place of a grid."""
    compute[grid](*given, **compiled)


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
