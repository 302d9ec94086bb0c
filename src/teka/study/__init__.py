"""Studies: grids of runs, trained side by side and gone on with, each cell one JSON file."""

from teka.study.measure import Measure
from teka.study.read_study import read_study
from teka.study.repeat import Repetition, repeat_cell
from teka.study.run_study import Progress, run_study
from teka.study.step_seconds import measure_step_seconds
from teka.study.study import Study
from teka.study.tune import Tune

__all__ = [
    "Measure",
    "Progress",
    "Repetition",
    "Study",
    "Tune",
    "measure_step_seconds",
    "read_study",
    "repeat_cell",
    "run_study",
]
