"""What a run folder's `report.json` holds."""

from dataclasses import dataclass

from teka.training.report.model_result import ModelResult
from teka.training.report.seed_group import SeedGroup, group_by_name


@dataclass(frozen=True)
class Report:
    """The contents of a run folder's `report.json`.

    Args:
        dataset: Name of the data.
        command: The command that made the results.
        teka: Version of teka.
        torch: Version of PyTorch.
        models: The result of every model and seed, at least one.
        hardware: What it ran on, where known.
        date: When it ran, where known.
        mode: How the images were shifted, where known.
        finding: What was found, in plain words, where it was saved.
    """

    dataset: str
    command: str
    teka: str
    torch: str
    models: tuple[ModelResult, ...]
    hardware: str | None = None
    date: str | None = None
    mode: str | None = None
    finding: str | None = None

    @property
    def groups(self) -> tuple[SeedGroup, ...]:
        """The models, each with its results over seeds."""
        return group_by_name(self.models)

    def shifts(self, axis: str) -> list[int]:
        """Every shift along one axis at which some model was measured, from the lowest to the highest."""
        return sorted({shift for model in self.models for shift in model.accuracy_by_shift[axis]})
