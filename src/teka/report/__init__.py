"""Pictures, tables and a page from the saved results of a run; draws nothing and needs no extra until asked to."""

from teka.report.audit_page import write_audit_page
from teka.report.audit_text import audit_text
from teka.report.examples import Examples, load_examples
from teka.report.finding import finding
from teka.report.html import render_html
from teka.report.load import load_report
from teka.report.model_result import ModelResult
from teka.report.reproduction import ReproductionFiles, write_reproduction
from teka.report.results import Report
from teka.report.shift_curve import draw_shift_curve, write_shift_curve
from teka.report.study_results import StudyResults, read_study_results
from teka.report.study_write import StudyFiles, write_study
from teka.report.table import markdown_table, plain_table
from teka.report.write import Written, write

__all__ = [
    "Examples",
    "ModelResult",
    "Report",
    "ReproductionFiles",
    "StudyFiles",
    "StudyResults",
    "Written",
    "audit_text",
    "draw_shift_curve",
    "finding",
    "load_examples",
    "load_report",
    "markdown_table",
    "plain_table",
    "read_study_results",
    "render_html",
    "write",
    "write_audit_page",
    "write_reproduction",
    "write_shift_curve",
    "write_study",
]
