"""Which backend computes an attention."""

from teka.errors import unknown_name, wrong_value
from teka.functional.backend.dense import dense_multiplications
from teka.functional.backend.linear import linear_multiplications
from teka.functional.backend.rings import rings_multiplications
from teka.functional.backend.toeplitz import toeplitz_multiplications
from teka.functional.kernel import FeatureKernel, Kernel
from teka.functional.placement import Placement
from teka.functional.relative import Relative, RingRelative, SeparableRelative

BACKENDS = ("auto", "dense", "linear", "toeplitz", "rings")


def backend_costs(
    kernel: Kernel,
    relative: Relative | None,
    placement: Placement,
    *,
    num_queries: int,
    num_keys: int,
    dim: int,
    dim_value: int,
) -> dict[str, int]:
    """Cost of one head, in multiply-adds, for every backend that can compute this attention exactly as defined.

    Args:
        kernel: The content kernel.
        relative: The relative kernel, or None.
        placement: Where the tokens are.
        num_queries: Number of queries.
        num_keys: Number of keys.
        dim: Size of queries and keys.
        dim_value: Size of values.
    """
    if not isinstance(kernel, FeatureKernel):
        pairs = dense_multiplications(num_queries, num_keys, dim, dim_value, has_relative=relative is not None)
        return {"dense": pairs}
    num_features = kernel.num_features(dim)
    has_relative = relative is not None
    costs = {"dense": dense_multiplications(num_queries, num_keys, num_features, dim_value, has_relative=has_relative)}
    if relative is None:
        costs["linear"] = linear_multiplications(num_queries, num_keys, num_features, dim_value)
    grid = placement.grid
    if grid is not None and isinstance(relative, SeparableRelative):
        costs["toeplitz"] = toeplitz_multiplications(grid, num_features, dim_value)
    if grid is not None and isinstance(relative, RingRelative) and relative.rings_fit(grid):
        costs["rings"] = rings_multiplications(grid, num_features, dim_value, relative.max_distance)
    return costs


def choose_backend(backend: str, costs: dict[str, int]) -> str:
    """The backend asked for, or for "auto" the cheapest.

    Raises:
        ValueError: An unknown name, or a backend that cannot compute this attention.
    """
    if backend not in BACKENDS:
        raise unknown_name("backend", backend, BACKENDS)
    if backend == "auto":
        return min(costs, key=lambda name: costs[name])
    if backend not in costs:
        expected = f"one of {', '.join(map(repr, ('auto', *costs)))} for this kernel, relative kernel and grid"
        raise wrong_value("backend", backend, expected)
    return backend
