"""Studies: grids of training runs, trained in parallel and compared."""

from reproduction.study.cells import read_cells
from reproduction.study.report import write_study
from reproduction.study.run_study import run_study
from reproduction.study.study import Measure, Stability, Study, read_study

__all__ = ["Measure", "Stability", "Study", "read_cells", "read_study", "run_study", "write_study"]
