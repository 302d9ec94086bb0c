"""Sums of features by Triton kernels on a GPU; this file decides where they run and imports none of Triton."""

import os
from importlib.util import find_spec

import torch
from torch import Tensor

from teka.functional.kernel.features import Elu
from teka.functional.kernel.local import Focused, Relu, SquaredRelu

HAS_TRITON = find_spec("triton") is not None
# Triton's own switch: kernels then run on a CPU, slowly, by Python.
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# Most features and most channels of a head, which lie in registers.
LARGEST_SIZE = 128
# Kernels whose features are made in registers; those of all others are made before.
MADE_WITHIN = (SquaredRelu, Relu, Focused, Elu)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def triton_fits(query: Tensor, value: Tensor, num_features: int) -> bool:
    """Whether there are kernels for tensors of this dtype and device, and for so many features."""
    if not HAS_TRITON or not (query.is_cuda or IS_INTERPRETED) or query.dtype not in DTYPES:
        return False
    return max(num_features, value.shape[-1]) <= LARGEST_SIZE
