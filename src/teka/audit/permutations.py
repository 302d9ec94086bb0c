"""Sets of permutations of tokens, and the check that they are some."""

from collections.abc import Iterable, Sequence

import torch

from teka.errors import wrong_value


def random_permutations(num_tokens: int, number: int = 8, *, seed: int = 0) -> tuple[tuple[int, ...], ...]:
    """Permutations of tokens drawn uniformly from all but the one that moves nothing.

    Args:
        num_tokens: Number of tokens, at least 2.
        number: How many to draw.
        seed: Seed of the draw; the same gives the same permutations.

    Raises:
        ValueError: Fewer than 2 tokens or 1 permutation.
    """
    if num_tokens < 2:
        raise wrong_value("num_tokens", num_tokens, "at least 2")
    if number < 1:
        raise wrong_value("number", number, "at least 1")
    generator = torch.Generator().manual_seed(seed)
    drawn: list[tuple[int, ...]] = []
    while len(drawn) < number:
        order = tuple(torch.randperm(num_tokens, generator=generator).tolist())
        if order != tuple(range(num_tokens)):
            drawn.append(order)
    return tuple(drawn)


def check_permutations(permutations: Iterable[Sequence[int]], num_tokens: int) -> tuple[list[int], ...]:
    """The permutations as lists, in the order given.

    Raises:
        ValueError: None at all, or one that does not hold every number from 0 to num_tokens − 1 once.
    """
    orders = tuple(list(map(int, order)) for order in permutations)
    if not orders:
        raise wrong_value("permutations", orders, "at least one permutation")
    for order in orders:
        if sorted(order) != list(range(num_tokens)):
            raise wrong_value("permutations", order, f"every number from 0 to {num_tokens - 1} once in each")
    return orders
