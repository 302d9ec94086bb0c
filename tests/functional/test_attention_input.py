import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.contracts.cases import draw_inputs
from torch import Tensor

from teka import Grid
from teka.functional import Clipped, Positive, Rotation, attention


def rotation(heads: int, num_axes: int) -> Rotation:
    """A rotation kernel with two scales."""
    weight = torch.ones(heads, num_axes, 2)
    return Rotation(torch.ones(2), weight, weight)


def call(**changed: Any) -> Tensor:
    query, key, value = draw_inputs(15)
    arguments: dict[str, Any] = {"query": query, "key": key, "value": value, **changed}
    return attention(**arguments)


ZEROS = torch.zeros(2, 3, 15, 5).double()
GRID = Grid((3, 5))
NAN_POSITIONS = torch.full((15, 2), math.nan)
BAD = {
    "query of rank 3": ({"query": ZEROS[0]}, r"query has shape \(3, 15, 5\), expected \(batch, heads, tokens, dim\)"),
    "key of rank 5": ({"key": ZEROS[None]}, r"key has shape \(1, 2, 3, 15, 5\)"),
    "value of rank 2": ({"value": ZEROS[0, 0]}, r"value has shape \(15, 5\)"),
    "key of another batch": ({"key": ZEROS[:1]}, r"key has shape \(1, 3, 15, 5\), expected \(2, 3, tokens, 5\)"),
    "key of other heads": ({"key": ZEROS[:, :1]}, r"key has shape \(2, 1, 15, 5\)"),
    "key of another size": ({"key": ZEROS[..., :4]}, r"key has shape \(2, 3, 15, 4\)"),
    "no tokens": (
        {"query": ZEROS[:, :, :0], "key": ZEROS[:, :, :0]},
        r"query has shape \(2, 3, 0, 5\), expected .* only batch may be 0",
    ),
    "value of another length": (
        {"value": ZEROS[:, :, :14]},
        r"value has shape \(2, 3, 14, 5\), expected \(2, 3, 15, dim\)",
    ),
    "key of another dtype": ({"key": ZEROS.float()}, r"key is torch.float32, expected .*torch.float64"),
    "a list": ({"query": ZEROS.tolist()}, r"query is of type list, expected a tensor of a floating dtype"),
    "an array": ({"value": ZEROS.numpy()}, r"value is of type ndarray, expected a tensor"),
    "complex numbers": ({"key": ZEROS.to(torch.complex64)}, r"key is torch.complex64, expected a floating dtype"),
    "whole numbers": ({"query": ZEROS.long()}, r"query is torch.int64, expected a floating dtype"),
    "other lengths with positions": (
        {"query": ZEROS[:, :, :14], "relative": "rotation", "grid": GRID},
        r"the sequence has 14 tokens, expected 0 prefix \+ 15 tokens of the grid \(3, 5\)",
    ),
    "a tuple for a grid": ({"grid": (3, 5), "relative": "rotation"}, r"grid is \(3, 5\), expected a teka.Grid"),
    "a grid of another length": ({"grid": Grid((3, 4)), "relative": "rotation"}, r"has 15 tokens, expected .* 12"),
    "a grid that leaves out the prefix": (
        {"grid": GRID, "relative": "rotation", "num_prefix_tokens": 1},
        r"has 15 tokens, expected 1 prefix \+ 15",
    ),
    "fewer than no prefix": (
        {"grid": GRID, "relative": "rotation", "num_prefix_tokens": -1},
        r"num_prefix_tokens is -1",
    ),
    "a prefix and no position": ({"num_prefix_tokens": -1}, r"num_prefix_tokens is -1"),
    "neither grid nor positions": ({"relative": "rotation"}, r"grid and positions is 'neither'"),
    "both grid and positions": (
        {"relative": "rotation", "grid": GRID, "positions": GRID.positions()},
        r"grid and positions is 'both'",
    ),
    "positions of another length": (
        {"relative": "rotation", "positions": GRID.positions()[:14]},
        r"positions has shape \(14, 2\), expected \(15, axes\) or \(2, 15, axes\)",
    ),
    "positions of another batch": (
        {"relative": "rotation", "positions": GRID.positions().expand(3, -1, -1)},
        r"positions has shape \(3, 15, 2\)",
    ),
    "positions without axes": (
        {"relative": "rotation", "positions": torch.zeros(15)},
        r"positions has shape \(15,\)",
    ),
    "positions in a list": ({"relative": "rotation", "positions": [[0.0, 1.0]]}, r"positions is of type list"),
    "a fraction of a prefix": ({"num_prefix_tokens": 1.5}, r"num_prefix_tokens is 1.5, expected a whole number"),
    "a grid that does not fit, of no use": ({"relative": None, "grid": Grid((3, 4))}, r"has 15 tokens, expected .* 12"),
    "causality in words": ({"is_causal": "yes"}, r"is_causal is 'yes', expected True or False"),
    "positions with NaN": ({"relative": "rotation", "positions": NAN_POSITIONS}, r"positions hold NaN or infinity"),
    "an unknown kernel": ({"kernel": "sofmax"}, r"kernel is 'sofmax', expected one of .*; did you mean 'softmax'\?"),
    "a kernel that is none": ({"kernel": 3}, r"kernel is 3, expected a name or an instance"),
    "an unknown relative kernel": (
        {"relative": "rotations", "grid": GRID},
        r"relative is 'rotations', expected one of .*; did you mean 'rotation'\?",
    ),
    "a relative kernel that is none": ({"relative": 3, "grid": GRID}, r"relative is 3, expected None, a name or"),
    "an unknown backend": ({"backend": "liner"}, r"backend is 'liner', expected one of .*; did you mean 'linear'\?"),
    "a backend that cannot": (
        {"backend": "rings", "relative": "rotation", "grid": GRID, "kernel": "constant"},
        r"backend is 'rings', expected one of 'auto', 'dense', 'toeplitz', 'fft' for this kernel",
    ),
    "a mask of another shape": (
        {"key_mask": torch.ones(2, 14, dtype=torch.bool)},
        r"key_mask has shape \(2, 14\), expected \(2, 15\)",
    ),
    "a mask for each query": ({"key_mask": torch.ones(2, 15, 15, dtype=torch.bool)}, r"key_mask has shape"),
    "a mask in an array": (
        {"key_mask": np.ones((2, 15), dtype=bool)},
        r"key_mask is of type ndarray, expected a tensor",
    ),
    "a mask of numbers": ({"key_mask": torch.ones(2, 15)}, r"key_mask is torch.float32, expected torch.bool"),
    "a mask that keeps nothing": (
        {"key_mask": torch.tensor([[True], [False]]).expand(2, 15)},
        r"key_mask keeps no token of sample 1",
    ),
    "a negative scale": ({"scale": -1.0}, r"scale is -1.0, expected a positive finite number"),
    "a scale in words": ({"scale": "large"}, r"scale is 'large', expected a positive finite number"),
    "an infinite scale": ({"scale": math.inf}, r"scale is inf"),
    "a projection of another size": (
        {"kernel": Positive(torch.zeros(7, 4))},
        r"projection has shape \(7, 4\), expected \(features, 5\)",
    ),
    "embeddings of another size": (
        {"relative": Clipped(torch.zeros(4, 6)), "grid": GRID},
        r"relative.distance_embedding has shape \(4, 6\), expected \(4, 5\)",
    ),
    "rotation of other axes": (
        {"relative": rotation(3, 1), "grid": GRID},
        r"relative.cosine_weight has shape \(3, 1, 2\), expected \(3, 2, 2\)",
    ),
    "rotation of other heads": (
        {"relative": rotation(2, 2), "grid": GRID},
        r"relative.cosine_weight has shape \(2, 2, 2\), expected \(3, 2, 2\)",
    ),
}


@pytest.mark.parametrize("fault", BAD)
def test_bad_input_is_an_error_that_names_it(fault: str, as_users_run_it: None):
    changed, message = BAD[fault]
    with pytest.raises(ValueError, match=message):
        call(**changed)
