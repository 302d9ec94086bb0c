"""Ways to compute one attention: `dense` is the truth, the others equal it at a lower cost."""

from teka.functional.backend.plan import BACKENDS, Workload, backend_costs, choose_backend

__all__ = ["BACKENDS", "Workload", "backend_costs", "choose_backend"]
