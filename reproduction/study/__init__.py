"""Studies, which train one model for each combination of options and compare the models."""

from reproduction.study.results import read_results_table
from reproduction.study.run_study import run_study
from reproduction.study.study import Study, read_study
from reproduction.study.summary_page import write_study_page

__all__ = ["Study", "read_results_table", "read_study", "run_study", "write_study_page"]
