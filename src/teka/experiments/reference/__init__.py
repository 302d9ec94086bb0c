"""Numbers of the literature that results are compared with."""

from teka.experiments.reference.cordonnier2020 import PaperModel, paper_models
from teka.experiments.reference.horn2021 import PIXELS, PaperCurve, PaperRow, figure1, paper_row, table1

__all__ = ["PIXELS", "PaperCurve", "PaperModel", "PaperRow", "figure1", "paper_models", "paper_row", "table1"]
