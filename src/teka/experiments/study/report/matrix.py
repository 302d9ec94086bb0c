"""Which factor of a study is its panel, which its rows and which its columns."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from teka.experiments.study.report.group import StudyGroup
from teka.experiments.study.report.results import StudyResults

PANEL, ROW, COLUMN = "data", "kernel", "position"


@dataclass(frozen=True)
class StudyMatrix:
    """A study laid out: one panel for each data set, and in it rows and columns.

    The factor "data" makes the panels. Of the other factors, where there are two or more, "position", or else the last
    one other than "kernel", makes the columns; all that remain make the rows together.

    Args:
        study: The results.
    """

    study: StudyResults

    @property
    def column_factor(self) -> str | None:
        """The factor of the columns, None for a study without columns."""
        others = [factor for factor in self.study.factors if factor != PANEL]
        if len(others) < 2:
            return None
        return COLUMN if COLUMN in others else [factor for factor in others if factor != ROW][-1]

    @property
    def row_factors(self) -> tuple[str, ...]:
        """The factors of the rows."""
        return tuple(factor for factor in self.study.factors if factor not in (PANEL, self.column_factor))

    @property
    def row_title(self) -> str:
        """What the rows are."""
        return ", ".join(self.row_factors) or "model"

    def panel_of(self, group: StudyGroup) -> str:
        """The group's panel, an empty text in a study without data sets."""
        return group.labels.get(PANEL, "")

    def row_of(self, group: StudyGroup) -> str:
        """The group's row."""
        return ", ".join(group.labels[factor] for factor in self.row_factors) or "all"

    def column_of(self, group: StudyGroup) -> str:
        """The group's column, an empty text in a study without columns."""
        return "" if self.column_factor is None else group.labels[self.column_factor]

    def name_of(self, group: StudyGroup) -> str:
        """Row and column of a group: "squared relu × rotation"."""
        return " × ".join(part for part in (self.row_of(group), self.column_of(group)) if part)

    @cached_property
    def _by_place(self) -> dict[tuple[str, str, str], StudyGroup]:
        groups = self.study.groups
        return {(self.panel_of(group), self.row_of(group), self.column_of(group)): group for group in groups}

    @property
    def panels(self) -> list[str]:
        """The data sets."""
        return list(dict.fromkeys(panel for panel, _, _ in self._by_place))

    @cached_property
    def rows(self) -> list[str]:
        """The rows, from the highest accuracy to the lowest."""
        return self._ranked(1)

    @cached_property
    def columns(self) -> list[str]:
        """The columns, from the highest accuracy to the lowest."""
        return self._ranked(2)

    def reference_row(self, reference: Mapping[str, str]) -> str | None:
        """The row that a reference's levels of some factors pick, None where they do not pick a single row."""
        if not self.row_factors or not set(self.row_factors) <= set(reference):
            return None
        return ", ".join(reference[factor] for factor in self.row_factors)

    def at(self, panel: str, row: str, column: str) -> StudyGroup | None:
        """The group at a place, None where no cell is there."""
        return self._by_place.get((panel, row, column))

    def ranked_groups(self, panel: str) -> list[StudyGroup]:
        """The groups of a panel, from the highest accuracy to the lowest, those without one last."""
        means = {place: found.mean for place, group in self._by_place.items() if (found := group.estimate("accuracy"))}
        places = [place for place in self._by_place if place[0] == panel]
        return [self._by_place[place] for place in sorted(places, key=lambda place: -means.get(place, -1.0))]

    def _ranked(self, axis: int) -> list[str]:
        """Levels by their mean lead over the others at the same place, so that missing cells favour none."""
        means = {place: found.mean for place, group in self._by_place.items() if (found := group.estimate("accuracy"))}
        fields: dict[tuple[str, ...], list[float]] = {}
        for place, mean in means.items():
            fields.setdefault(place[:axis] + place[axis + 1 :], []).append(mean)
        leads: dict[str, list[float]] = {}
        for place, mean in means.items():
            leads.setdefault(place[axis], []).append(mean - fmean(fields[place[:axis] + place[axis + 1 :]]))
        levels = dict.fromkeys(place[axis] for place in self._by_place)
        return sorted(levels, key=lambda level: -fmean(leads[level]) if level in leads else 1.0)
