"""Studies: grids of runs, trained side by side and gone on with, each cell one JSON file."""

from teka.experiments.study.measure import Measure
from teka.experiments.study.read_study import read_study
from teka.experiments.study.repeat import Repetition, repeat_cell
from teka.experiments.study.run_study import Progress, run_study
from teka.experiments.study.step_seconds import measure_step_seconds
from teka.experiments.study.study import Study
from teka.experiments.study.tune import Tune

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
