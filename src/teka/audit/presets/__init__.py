"""Procedures of the literature, to the letter."""

from teka.audit.presets.chaman2021 import chaman2021
from teka.audit.presets.horn2021 import horn2021
from teka.audit.presets.preset_result import PresetResult
from teka.audit.presets.zhang2019 import zhang2019

PRESETS = {"horn2021": horn2021, "zhang2019": zhang2019, "chaman2021": chaman2021}

__all__ = ["PRESETS", "PresetResult", "chaman2021", "horn2021", "zhang2019"]
