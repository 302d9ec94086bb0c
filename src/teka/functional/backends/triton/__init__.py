"""Triton kernels of linear attention for NVIDIA GPUs.

This module tells whether the kernels support an input. Importing it does not import Triton, which
is needed only when a kernel runs.
"""

import os
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from teka.functional.kernels.content_kernel import ContentKernel
from teka.functional.kernels.feature_kernels import Elu
from teka.functional.kernels.rectified import Relu, SquaredRelu

HAS_TRITON = find_spec("triton") is not None
IS_ENABLED = os.environ.get("TEKA_TRITON") != "0"
# Triton's interpreter runs the kernels slowly on a CPU.
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# Larger heads need more shared memory than many GPUs have.
MAX_DIM_HEAD = 64
# The kernels compute the features of these content kernels.
CONTENT_KERNELS = (SquaredRelu, Relu, Elu)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class TritonAngles:
    """Rotary angles of queries and keys for the Triton kernels.

    Args:
        query_angles: Angles of the queries, shape (#batch, heads, queries, pairs), or None without
            a rotation.
        key_angles: Angles of the keys, shape (#batch, heads, keys, pairs), or None without a
            rotation.
        length_share: Weight λ of the pair lengths in the denominator.
    """

    query_angles: Tensor | None = None
    key_angles: Tensor | None = None
    length_share: float = 0.0

    @property
    def angle_tensors(self) -> tuple[Tensor, ...]:
        """The rotary angles as a tuple of tensors, which is empty if nothing is rotated."""
        if self.query_angles is None or self.key_angles is None:
            return ()
        return self.query_angles, self.key_angles


def can_use_triton(kernel: ContentKernel, query: Tensor, value: Tensor) -> bool:
    """Return True if the Triton kernels for linear attention support the kernel and the inputs.

    The feature map, the dtype, the sizes and the device of the inputs must be supported.
    """
    is_available = IS_INTERPRETED or (query.is_cuda and IS_ENABLED)
    if not HAS_TRITON or not is_available or query.dtype not in DTYPES:
        return False
    if type(kernel) not in CONTENT_KERNELS:
        return False
    if max(query.shape[-1], value.shape[-1]) > MAX_DIM_HEAD:
        return False
    return IS_INTERPRETED or _is_supported_gpu(query.device)


def _is_supported_gpu(device: torch.device) -> bool:
    if torch.version.cuda is None or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_properties(device).major >= 8
