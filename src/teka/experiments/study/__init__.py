"""Studies: grids of runs, trained side by side and resumed, each cell one JSON file or one line of a packed one."""

from teka.experiments.study.cells import pack_study
from teka.experiments.study.read_study import read_study
from teka.experiments.study.run_study import run_study
from teka.experiments.study.study import Measure, Study, Tune

__all__ = ["Measure", "Study", "Tune", "pack_study", "read_study", "run_study"]
