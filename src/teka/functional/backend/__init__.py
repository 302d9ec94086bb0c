"""Ways to compute one attention: `dense` is the truth, the others equal it at a lower cost."""

from teka.functional.backend.choose import BACKENDS, backend_costs, choose_backend
from teka.functional.backend.dense import dense
from teka.functional.backend.linear import linear
from teka.functional.backend.rings import rings
from teka.functional.backend.toeplitz import toeplitz

__all__ = ["BACKENDS", "backend_costs", "choose_backend", "dense", "linear", "rings", "toeplitz"]
