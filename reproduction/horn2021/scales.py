"""Studies that reproduce Horn et al. (2021), at four scales."""

from pathlib import Path

from reproduction.study import Study, read_study
from teka.checks import check_name

SCALES = ("small", "full", "full-cpu", "one-stem")


def read_scale(scale: str) -> Study:
    """Return the study of a scale.

    "small" has small models and images, for a CPU. "full" is the experiment of the paper, for a
    GPU. "full-cpu" has our models at full resolution, and "one-stem" the position encodings of the
    paper behind one stem, both for a CPU.
    """
    check_name("scale", scale, SCALES)
    return read_study(Path(__file__).with_name(f"{scale}.yaml"))


def target_levels(study: Study, target: str) -> dict[str, list[str]]:
    """Return the levels that "table1" or "figure1" needs. Table 1 needs every cell."""
    check_name("target", target, ("table1", "figure1"))
    if target == "table1":
        return {}
    models = study.factors["model"]
    performers = [name for name in models if models[name].get("model", "performer") == "performer"]
    return {"data": ["mnist", "fashion-mnist"], "model": performers}
