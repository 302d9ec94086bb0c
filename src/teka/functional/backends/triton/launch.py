"""Host code of linear attention with Triton: it allocates outputs and launches the kernels."""

import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.nn.functional import pad

from teka.functional.backends.triton import IS_INTERPRETED, kernels
from teka.functional.backends.triton.feature_maps import NO_KEY

# Tokens of a segment, at least. The state of a head of 64 features then has an eighth of the size
# of its keys and values. Bidirectional segments are longer if that still gives enough programs to
# fill a GPU.
SEGMENT_TOKENS = 256
NUM_PROGRAMS = 1024
# Elements of a state that one program of the scan processes.
SCAN_TILE = 256
# tl.dot needs matrices of at least 16 x 16.
MIN_SIZE = 16
# Tensor cores multiply with 11 bits; three such products give the precision of float32.
PRECISION = {
    torch.float32: "tf32x3",
    torch.float16: "tf32x3",
    torch.bfloat16: "ieee" if IS_INTERPRETED else "tf32",
}
LARGE_SHARED_MEMORY = 2**17


@dataclass(frozen=True)
class TritonOptions:
    """Options of an attention call that the Triton kernels take.

    Args:
        kernel: Name of the content kernel.
        scale: Scale of the inner products, for "elu".
        epsilon: ε of the floor of the rectified kernels.
        length_share: Weight λ of the pair lengths in the denominator.
        is_causal: True if queries attend to no later keys.
    """

    kernel: str
    scale: float
    epsilon: float
    length_share: float
    is_causal: bool


class ForwardResult(NamedTuple):
    """Outputs of linear attention on a GPU, with the sums and peaks that the backward pass needs.

    Args:
        output: Weighted means of the values, shape (batch, heads, queries, dim_value).
        inverse: 1 / denominator of every query, 0 for queries without keys.
        states: The sums over all keys or, if causal, over the keys before every segment.
        peaks: The largest exponent of all keys or, if causal, of the keys up to the end of every
            block.
    """

    output: Tensor
    inverse: Tensor
    states: Tensor
    peaks: Tensor


class TritonLaunch:
    """Launcher of the Triton kernels for one call of linear attention on a GPU.

    The inputs are converted to a memory layout that the kernels support.

    Args:
        query: Queries, shape (batch, heads, queries, dim).
        key: Keys, shape (batch, heads, keys, dim).
        value: Values, shape (batch, heads, keys, dim_value).
        key_mask: True for keys that are kept, shape (batch, keys), or None.
        query_angles: Rotary angles of the queries, shape (#batch, heads, queries, dim / 2), or
            None.
        key_angles: Rotary angles of the keys, or None.
        options: Options of the attention.
    """

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_mask: Tensor | None,
        query_angles: Tensor | None,
        key_angles: Tensor | None,
        options: TritonOptions,
    ) -> None:
        self.heads_first = query.is_contiguous()
        self.is_causal = options.is_causal
        self.query = self.to_query_layout(query)
        self.key = self.to_query_layout(key)
        self.value = self.to_query_layout(value)
        self.key_mask = query if key_mask is None else key_mask.contiguous().view(torch.int8)
        self.query_angles = _contiguous_angles(query_angles, query)
        self.key_angles = _contiguous_angles(key_angles, query)
        self.num_heads = query.shape[0] * query.shape[1]  # of all samples
        dim = query.shape[-1]
        dim_value = value.shape[-1]
        is_rotary = query_angles is not None
        is_bfloat16 = query.dtype == torch.bfloat16
        size = max(triton.next_power_of_2(dim), MIN_SIZE * (2 if is_rotary else 1))
        channels = max(triton.next_power_of_2(dim_value), MIN_SIZE)
        self.state_length = size * channels + size + size // 2
        # With 16-bit inputs, Triton 3.6 computes wrong products of rotated blocks of fewer than 32
        # tokens.
        self.block = 16 if query.dtype == torch.float32 else 32
        if is_bfloat16 and not self.is_causal:
            self.block = 64
        self.segment = max(SEGMENT_TOKENS, self.block)
        # Measured on an H200.
        self.query_warps = 8 if is_bfloat16 and not self.is_causal else 4
        self.gradient_warps = self.query_warps if max(size, channels) > 32 else 4
        precision = PRECISION[query.dtype]
        self.shared_arguments: dict[str, Any] = {
            "heads": query.shape[1],
            "num_query_angles": max(1, self.query_angles.shape[0] * query.shape[1]),
            "num_key_angles": max(1, self.key_angles.shape[0] * query.shape[1]),
            "root_scale": math.sqrt(options.scale),
            "floor_share": options.epsilon / math.sqrt(dim),
            "plain_root": math.sqrt(1 - options.length_share),
            "length_root": math.sqrt(options.length_share),
            "kernel": options.kernel,
            "rotary": is_rotary,
            "is_causal": self.is_causal,
            "is_masked": key_mask is not None,
            "heads_first": self.heads_first,
            "precision": precision,
            "block": self.block,
            "dim": dim,
            "dim_value": dim_value,
            "size": size,
            "channels": channels,
            "length": self.state_length,
            "num_stages": 2 if precision == "tf32x3" else _num_pipeline_stages(query.device),
        }

    def to_query_layout(self, tokens: Tensor) -> Tensor:
        """Return a tensor in the memory layout of the queries, heads first or tokens first."""
        if self.heads_first:
            return tokens.contiguous()
        return tokens.transpose(1, 2).contiguous().transpose(1, 2)

    def num_segments(self, tokens: Tensor) -> int:
        """Return the number of segments into which the kernels divide a sequence.

        One GPU program processes one segment of one attention head.
        """
        return max(1, triton.cdiv(tokens.shape[2], self.segment_size(tokens)))

    def segment_size(self, tokens: Tensor) -> int:
        """Return the number of tokens of a segment."""
        if self.is_causal:
            return self.segment
        tokens_per_program = triton.cdiv(self.num_heads * tokens.shape[2], NUM_PROGRAMS)
        return max(self.segment, triton.next_power_of_2(tokens_per_program))

    def allocate_states(self, num_states: int) -> Tensor:
        """Allocate GPU memory for `num_states` recurrent states of each head."""
        return self.allocate_floats(num_states, self.state_length)

    def allocate_floats(self, *shape: int) -> Tensor:
        """Allocate a float32 tensor of a given shape for each head."""
        return self.query.new_empty(self.num_heads, *shape, dtype=torch.float32)

    def allocate_result(self) -> ForwardResult:
        """Allocate the result of the forward pass."""
        batch, heads, num_queries, _ = self.query.shape
        output = self.to_query_layout(
            self.value.new_empty(batch, heads, num_queries, self.value.shape[-1])
        )
        num_states = 1
        num_peaks = 1
        if self.is_causal:
            num_states = max(1, -(-num_queries // self.segment))
            num_peaks = max(1, -(-num_queries // self.block))
        states = self.allocate_states(num_states)
        return ForwardResult(
            output, self.allocate_floats(num_queries), states, self.allocate_floats(num_peaks)
        )

    def allocate_gradients(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Allocate the gradients of queries, keys, values, query angles and key angles."""
        num_pairs = self.query_angles.shape[-1]
        grad_query_angles, grad_key_angles = (
            self.allocate_floats(tokens.shape[2], num_pairs).unflatten(0, tokens.shape[:2])
            for tokens in (self.query, self.key)
        )
        grad_query, grad_key, grad_value = map(torch.empty_like, (self.query, self.key, self.value))
        return grad_query, grad_key, grad_value, grad_query_angles, grad_key_angles

    def launch_kernel(
        self, function: Any, tokens: Tensor, *tensors: Tensor, num_warps: int = 4
    ) -> None:
        """Launch a Triton kernel with one GPU program per head and segment of a sequence."""
        run_on_tensor_device(
            function,
            (self.num_heads, self.num_segments(tokens)),
            *tensors,
            num_tokens=tokens.shape[2],
            segment=self.segment_size(tokens),
            num_warps=num_warps,
            **self.shared_arguments,
        )

    def scan_states(
        self, states: Tensor, decays: Tensor, weights: Tensor, *, is_reversed: bool
    ) -> None:
        """Replace the sums over the keys of each segment by the sums over all earlier segments.

        Causal attention starts each segment with these sums. With `is_reversed`, later segments are
        summed instead. `decays` and `weights` contain one factor for each segment, as described in
        `kernels.scan_segments`.
        """
        grid = self.num_heads, triton.cdiv(self.state_length, SCAN_TILE)
        sizes = states.shape[1], self.state_length
        run_on_tensor_device(
            kernels.scan_segments,
            grid,
            states,
            decays,
            weights,
            *sizes,
            is_reversed=is_reversed,
            tile=SCAN_TILE,
        )

    @property
    def input_tensors(self) -> tuple[Tensor, ...]:
        """Inputs of the Triton kernels: tokens, key mask, and cosines and sines of the angles."""
        tables = [
            function(angles)
            for angles in (self.query_angles, self.key_angles)
            for function in (torch.cos, torch.sin)
        ]
        return self.query, self.key, self.value, self.key_mask, *tables

    def run_forward_kernels(self) -> ForwardResult:
        """Compute the outputs of linear attention on the GPU.

        The result also contains the sums and peaks that the backward pass needs.
        """
        result = self.allocate_result()
        inputs = self.input_tensors
        states = self.allocate_states(self.num_segments(self.key))
        peaks = self.allocate_floats(states.shape[1])
        self.launch_kernel(
            kernels.compute_segment_states, self.key, *inputs[1:4], *inputs[6:], states, peaks
        )
        if self.is_causal:
            peaks_after = peaks.cummax(dim=-1).values
            state_peaks = pad(peaks_after[:, :-1], (1, 0), value=NO_KEY.value)
            # A peak of NaN marks a key that is not finite. Every later output is NaN for any state.
            decays = torch.exp2(state_peaks - peaks_after).nan_to_num(0.0)
            weights = torch.exp2(peaks - peaks_after).nan_to_num(0.0)
            self.scan_states(states, decays, weights, is_reversed=False)
        else:
            state_peaks = peaks.amax(dim=-1, keepdim=True)
            weights = torch.exp2(peaks - state_peaks)[..., None]
            states = (states * weights).sum(dim=1, keepdim=True)
        self.launch_kernel(
            kernels.compute_outputs,
            self.query,
            *inputs,
            states,
            state_peaks,
            result.output,
            result.inverse,
            result.peaks,
            num_warps=self.query_warps,
        )
        peaks = result.peaks if self.is_causal else state_peaks
        return ForwardResult(result.output, result.inverse, states, peaks)

    def run_backward_kernels(self, gradient: Tensor, result: ForwardResult) -> tuple[Tensor, ...]:
        """Compute the gradients of queries, keys, values and rotary angles on the GPU."""
        gradients = self.allocate_gradients()
        grad_query, grad_key, grad_value, grad_query_angles, grad_key_angles = gradients
        inputs = self.input_tensors
        outputs = result.output, result.inverse, self.to_query_layout(gradient)
        peaks = result.peaks
        grad_states = self.allocate_states(self.num_segments(self.query))
        self.launch_kernel(
            kernels.compute_query_gradients,
            self.query,
            *inputs,
            result.states,
            peaks,
            *outputs,
            grad_query,
            grad_query_angles,
            grad_states,
            num_warps=self.gradient_warps,
        )
        if self.is_causal:
            blocks = self.segment // self.block
            peaks_before = pad(peaks[:, blocks - 1 : -1 : blocks], (1, 0), value=NO_KEY.value)
            peaks_after = torch.cat([peaks_before[:, 1:], peaks[:, -1:]], dim=-1)
            decays = torch.exp2(peaks_before - peaks_after)
            self.scan_states(grad_states, decays, torch.ones_like(decays), is_reversed=True)
        else:
            grad_states = grad_states.sum(dim=1, keepdim=True)
        self.launch_kernel(
            kernels.compute_key_gradients,
            self.key,
            *inputs,
            grad_states,
            peaks,
            *outputs,
            grad_key,
            grad_value,
            grad_key_angles,
        )
        return gradients


def run_on_tensor_device(
    function: Any, grid: tuple[int, ...], *arguments: Any, **options: Any
) -> None:
    """Launch a Triton kernel on the GPU that holds its first argument.

    `grid` is the number of programs along each axis of the launch.
    """
    with torch.cuda.device_of(arguments[0]):
        function[grid](*arguments, **options)


def _contiguous_angles(angles: Tensor | None, query: Tensor) -> Tensor:
    """Return the rotary angles in contiguous memory, or an empty tensor if there are none."""
    return query.new_empty(1, 0, 0, 0) if angles is None else angles.contiguous()


@functools.cache
def _num_pipeline_stages(device: torch.device) -> int:
    """Return the largest number of pipelining stages that fits in the shared memory of the GPU."""
    if device.type != "cuda":
        return 2
    properties = torch.cuda.get_device_properties(device)
    memory = getattr(properties, "shared_memory_per_block_optin", 0)
    return 3 if memory >= LARGE_SHARED_MEMORY else 2
