"""Audit of vision models under shifts of their images."""

from teka.audit.audit import audit
from teka.audit.layers.localize import locate_layers
from teka.audit.measure.measure_responses import measure_responses
from teka.audit.measure.responses import Responses
from teka.audit.model_call import ModelError
from teka.audit.movement import Movement, paste_on_canvas, translate
from teka.audit.page.pages import write_page
from teka.audit.report import AuditReport
from teka.audit.settings import AuditSettings
from teka.audit.shifts import axis_shifts, random_permutations, square_shifts
from teka.audit.statistics.comparison import compare_responses
from teka.audit.statistics.intervals import Estimate, wilson_interval
from teka.audit.statistics.metrics import summarize

__all__ = [
    "AuditReport",
    "AuditSettings",
    "Estimate",
    "ModelError",
    "Movement",
    "Responses",
    "audit",
    "axis_shifts",
    "compare_responses",
    "locate_layers",
    "measure_responses",
    "paste_on_canvas",
    "random_permutations",
    "square_shifts",
    "summarize",
    "translate",
    "wilson_interval",
    "write_page",
]
