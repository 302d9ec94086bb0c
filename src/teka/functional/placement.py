"""Where the tokens of a sequence are."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from teka.errors import wrong_shape, wrong_value
from teka.grid import Grid


@dataclass(frozen=True)
class Placement:
    """Tokens of a sequence: first those without a position (a class token, say), then one for each position.

    Args:
        grid: The grid whose cells the tokens are, or None.
        positions: Positions in physical units, (L, n) or (B, L, n), or None. At most one of the two is given.
        num_prefix_tokens: Tokens before the first position; c = 1 for every pair that holds one of them.
    """

    grid: Grid | None
    positions: Float[Tensor, "*batch tokens axes"] | None
    num_prefix_tokens: int = 0

    @property
    def num_axes(self) -> int:
        """Number of axes n."""
        if self.grid is not None:
            return self.grid.num_axes
        return 0 if self.positions is None else self.positions.shape[-1]

    def positions_like(self, tensor: Tensor) -> Float[Tensor, "*batch tokens axes"]:
        """The positions in the dtype and on the device of a tensor."""
        if self.grid is not None:
            return self.grid.positions(dtype=tensor.dtype, device=tensor.device)
        assert self.positions is not None
        return self.positions.to(tensor)

    def offsets_like(self, tensor: Tensor) -> Float[Tensor, "*batch tokens tokens axes"]:
        """Offset of every pair of placed tokens, in the dtype and on the device of a tensor."""
        if self.grid is not None:
            return self.grid.offsets(dtype=tensor.dtype, device=tensor.device)
        positions = self.positions_like(tensor)
        return positions[..., :, None, :] - positions[..., None, :, :]

    def with_prefix(self, log_relative: Float[Tensor, "*batch placed placed"]) -> Float[Tensor, "*batch tokens tokens"]:
        """log c of the placed tokens, with 0 for every pair that holds a prefix token."""
        return pad(log_relative, (self.num_prefix_tokens, 0, self.num_prefix_tokens, 0))


def check_placement(placement: Placement, *, batch: int, num_tokens: int) -> None:
    """Hold that a placement fits sequences of `num_tokens`.

    Raises:
        ValueError: Both or neither of grid and positions, a length that is not theirs, positions of a wrong shape or
            with NaN or infinity, or fewer than 0 prefix tokens.
    """
    grid, positions, prefix = placement.grid, placement.positions, placement.num_prefix_tokens
    if prefix < 0:
        raise wrong_value("num_prefix_tokens", prefix, "0 or more")
    if (grid is None) == (positions is None):
        came = "neither" if grid is None else "both"
        raise wrong_value("grid and positions", came, "exactly one of the two with a relative kernel")
    if grid is not None:
        if num_tokens != prefix + grid.num_tokens:
            expected = f"{prefix} prefix + {grid.num_tokens} tokens of the grid {grid.shape}"
            raise ValueError(f"the sequence has {num_tokens} tokens, expected {expected}")
        return
    assert positions is not None
    fits = positions.ndim in (2, 3) and positions.shape[-2] == num_tokens - prefix and positions.shape[-1] >= 1
    if not fits or (positions.ndim == 3 and positions.shape[0] not in (1, batch)):
        length = num_tokens - prefix
        raise wrong_shape("positions", positions.shape, f"({length}, axes) or ({batch}, {length}, axes)")
    if not torch.compiler.is_compiling() and not torch.isfinite(positions).all():
        raise ValueError("positions hold NaN or infinity, expected finite numbers")


def check_key_mask(key_mask: Bool[Tensor, "batch keys"], *, batch: int, num_keys: int) -> None:
    """Hold that a mask has one flag a key and keeps at least one key of every sample.

    Raises:
        ValueError: It does not.
    """
    if tuple(key_mask.shape) != (batch, num_keys):
        raise wrong_shape("key_mask", key_mask.shape, f"({batch}, {num_keys}): one flag a key, True = keep")
    if key_mask.dtype != torch.bool:
        raise wrong_value("key_mask", key_mask.dtype, "torch.bool")
    if not torch.compiler.is_compiling():
        empty = torch.nonzero(~key_mask.any(dim=1)).flatten().tolist()
        if empty:
            raise ValueError(f"key_mask keeps no key of sample {empty[0]}, expected at least one True in every row")
