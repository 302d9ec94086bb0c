"""Sums of features by Triton kernels on a GPU; this file decides where they run and imports none of Triton."""

import os
from importlib.util import find_spec

import torch
from torch import Tensor

from teka.functional.kernels.features import Elu
from teka.functional.kernels.rectified import Focused, Relu, SquaredRelu

HAS_TRITON = find_spec("triton") is not None
IS_WANTED = os.environ.get("TEKA_TRITON") != "0"
# Triton's own switch: kernels then run on a CPU, slowly, by Python.
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# Most features and channels of a head: compiled for more, programs need more memory within a core than many GPUs have.
LARGEST_SIZE = 64
# Kernels whose features are made in registers; those of all others are made before.
MADE_WITHIN = (SquaredRelu, Relu, Focused, Elu)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def triton_fits(query: Tensor, value: Tensor, num_features: int) -> bool:
    """Whether there are kernels for tensors of this dtype and device, and for so many features."""
    is_there = IS_INTERPRETED or (query.is_cuda and IS_WANTED)
    if not HAS_TRITON or not is_there or query.dtype not in DTYPES:
        return False
    return max(num_features, value.shape[-1]) <= LARGEST_SIZE and (
        IS_INTERPRETED or _is_recent(query.device)
    )


def _is_recent(device: torch.device) -> bool:
    """Whether a device is NVIDIA's of compute capability 8.0 or more, which the kernels were compiled for."""
    if torch.version.cuda is None or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_properties(device).major >= 8
