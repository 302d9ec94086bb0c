"""Studies: grids of runs, trained side by side and resumed, each cell one JSON file or one line of a packed one."""

from reproduction.study.cells import pack_study
from reproduction.study.read_study import read_study
from reproduction.study.run_study import run_study
from reproduction.study.study import Measure, Study, Tune

__all__ = ["Measure", "Study", "Tune", "pack_study", "read_study", "run_study"]
