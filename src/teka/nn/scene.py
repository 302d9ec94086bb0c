"""What one call of a layer is about: which tokens attend to which, where they are and which of them count."""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from teka.checks import WHOLE, check_sizes, check_tensor
from teka.errors import wrong_value
from teka.functional.placement import Sites, check_mask, check_sites, length_mask, make_sites
from teka.grid import Grid
from teka.nn.tokens import check_tokens


@dataclass(frozen=True)
class Scene:
    """Tokens that attend and those that are attended to; in the latter what is dropped is 0.

    Args:
        tokens: Tokens that attend.
        context: Tokens that are attended to.
        key_mask: True where one of these is kept, None for all.
        query_mask: True where a token that attends is real, None for all.
        places: Where they are, as arguments of `teka.functional.attention`.
        has_context: Whether the two are not the same tokens.
    """

    tokens: Float[Tensor, "batch queries dim"]
    context: Float[Tensor, "batch keys context_dim"]
    key_mask: Bool[Tensor, "batch keys"] | None
    query_mask: Bool[Tensor, "batch queries"] | None
    places: dict[str, Any]
    has_context: bool

    @property
    def sites(self) -> Sites:
        """Where the tokens that attend are."""
        return Sites(self.places.get("grid"), self.places.get("positions"))


def make_scene(
    tokens: Float[Tensor, "batch tokens dim"],
    grid: Grid | None,
    key_mask: Bool[Tensor, "batch keys"] | None,
    num_prefix_tokens: int,
    num_queries: int | None,
    positions: Float[Tensor, "*batch placed axes"] | None,
    lengths: Int[Tensor, "batch"] | None,
    context: Float[Tensor, "batch keys context_dim"] | None,
    context_grid: Grid | None,
    context_positions: Float[Tensor, "*key_batch placed_keys axes"] | None,
    *,
    dims: tuple[int, int],
    first: nn.Module,
    needs_places: bool,
) -> Scene:
    """Check the arguments of `Attention.forward`, for a layer with tokens of these sizes, and put them in order.

    `first` is one of its linear maps, and `needs_places` says whether it has a relative kernel.
    """
    check_tokens("tokens", tokens, "batch", "tokens", dims[0], first=first)
    check_sizes({"num_prefix_tokens": num_prefix_tokens}, 0)
    places = {"grid": grid, "positions": positions, "num_prefix_tokens": num_prefix_tokens}
    sites = make_sites("", grid, positions)
    if sites.is_known or needs_places:
        check_sites("", sites, num_prefix_tokens, batch=tokens.shape[0], num_tokens=tokens.shape[1])
    if context is None:
        for argument, given in (("context_grid", context_grid), ("context_positions", context_positions)):
            if given is not None:
                raise wrong_value(argument, "given", "None without a context")
        if dims[1] != dims[0]:
            raise wrong_value("context", None, f"tokens of size context_dim = {dims[1]}")
    else:
        check_tokens("context", context, tokens.shape[0], "tokens", dims[1], first=first)
        key_sites = make_sites("context_", context_grid, context_positions)
        if key_sites.is_known or needs_places:
            check_sites("context_", key_sites, 0, batch=context.shape[0], num_tokens=context.shape[1])
        places |= {"key_grid": context_grid, "key_positions": context_positions}
    attended_to, query_mask = tokens if context is None else context, None
    if lengths is not None:
        if key_mask is not None:
            raise wrong_value("key_mask and lengths", "both", "at most one of the two")
        check_tensor("lengths", lengths, tokens.shape[0], dtypes=WHOLE)
        key_mask = length_mask(lengths, attended_to.shape[1])
        query_mask = key_mask[:, :num_queries] if context is None else None
    if key_mask is not None:
        check_mask("key_mask", key_mask, batch=attended_to.shape[0], num_tokens=attended_to.shape[1])
        # What is dropped has no part in what the maps learn either, not even if it is NaN.
        attended_to = attended_to.masked_fill(~key_mask[..., None], 0.0)
        tokens = tokens if query_mask is None else attended_to
    # Fewer queries than keys have no places of their own, nor a relative kernel that would ask for them.
    places = places if num_queries is None else {}
    return Scene(tokens[:, :num_queries], attended_to, key_mask, query_mask, places, context is not None)
