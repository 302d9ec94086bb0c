"""Table 1 of Horn et al. (2021): the paper's numbers and ours side by side."""

import csv
import io
import itertools
from collections.abc import Sequence
from statistics import fmean, stdev

from teka.audit.page.notation import listed, significant
from teka.audit.page.tables import Table
from teka.experiments.reference import PaperRow, paper_row, table1
from teka.experiments.study.cells import CellResult
from teka.experiments.study.report.group import StudyGroup
from teka.experiments.study.report.notation import NOTHING, diverged, with_deviation
from teka.experiments.study.report.results import StudyResults

DATA_NAMES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}


def accuracy_table(study: StudyResults) -> Table:
    """Test accuracy of every model on every data set, the paper's before ours, with parameters and operations.

    Args:
        study: The results, with the factors "data" and "model".
    """
    data = ordered_data(study)
    heads = ["model", *(head for name in data for head in (f"{DATA_NAMES[name]}: paper", "ours"))]
    paper = table1()
    rows = []
    for model in ordered_models(study):
        cells = [model]
        for name in data:
            row = paper.get(paper_row(model))
            cells += [f"{row.accuracy[name]:g}" if row else NOTHING, with_spread(study, model, name)]
        rows.append((*cells, *_size(study, model, paper.get(paper_row(model)))))
    return Table("Test accuracy in %", (*heads, "parameters: paper", "ours", "MFLOPs"), tuple(rows))


def effort_table(study: StudyResults) -> Table:
    """Seeds, epochs and seconds of every model on every data set.

    Args:
        study: The results, with the factors "data" and "model".
    """
    data = ordered_data(study)
    heads = ["model", *(head for name in data for head in (f"{DATA_NAMES[name]}: seeds", "epochs", "seconds"))]
    models = ordered_models(study)
    rows = tuple((model, *(cell for name in data for cell in _effort(study, model, name))) for model in models)
    return Table("Training", tuple(heads), rows)


def ordered_data(study: StudyResults) -> list[str]:
    """The data sets that are there, in the order of Table 1.

    Args:
        study: The results.
    """
    return [name for name in DATA_NAMES if name in study.levels("data")]


def ordered_models(study: StudyResults) -> list[str]:
    """The models that are there: those of Table 1 in its order, each followed by its exact form, then the others.

    Args:
        study: The results.
    """
    rows = list(table1())

    def place(name: str) -> tuple[int, bool, str]:
        row = paper_row(name)
        return rows.index(row) if row in rows else len(rows), name != row, name

    return sorted(study.levels("model"), key=place)


def with_spread(study: StudyResults, model: str, data: str) -> str:
    """Mean and standard deviation of the accuracy over seeds, "94.8 ± 0.3", the mean alone for one seed.

    Args:
        study: The results.
        model: The model.
        data: The data set.
    """
    group = study.group({"data": data, "model": model})
    if group is None:
        return NOTHING
    values = [result.accuracy for result in group.results]
    return "\n".join(part for part in (with_deviation(values) if values else "", diverged(group)) if part)


def _results(study: StudyResults, model: str) -> list[CellResult]:
    return [result for result in study.results if result.labels["model"] == model]


def _size(study: StudyResults, model: str, row: PaperRow | None) -> tuple[str, str, str]:
    results = _results(study, model)
    # Data sets with one channel need fewer parameters than one with three.
    parameters = sorted({result.parameters for result in results})
    flops = sorted({result.forward_flops for result in results})
    return (
        row.parameters if row else NOTHING,
        _range([f"{count:,}" for count in parameters]),
        _range([significant(count / 1e6) for count in flops]),
    )


def _range(texts: Sequence[str]) -> str:
    return NOTHING if not texts else texts[0] if texts[0] == texts[-1] else f"{texts[0]} – {texts[-1]}"


def _effort(study: StudyResults, model: str, data: str) -> tuple[str, str, str]:
    group = study.group({"data": data, "model": model})
    if group is None or not group.results:
        return NOTHING, NOTHING, NOTHING
    epochs = sorted({result.epochs for result in group.results if result.epochs is not None})
    seconds = fmean(result.seconds for result in group.results)
    return str(len(group.results)), _range([str(count) for count in epochs]), significant(seconds)


def table1_csv(study: StudyResults) -> str:
    """One row for each model and data set; accuracies in %, what is not known is empty.

    Args:
        study: The results, with the factors "data" and "model".
    """
    places = itertools.product(ordered_models(study), ordered_data(study))
    groups = [study.group({"data": data, "model": model}) for model, data in places]
    rows = [_csv_row(group) for group in groups if group is not None]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _csv_row(group: StudyGroup) -> dict[str, object]:
    model, data, results = group.labels["model"], group.labels["data"], group.results
    paper = table1().get(paper_row(model))
    accuracy = [100 * result.accuracy for result in results]
    first = results[0] if results else None
    return {
        "model": model,
        "data": data,
        "paper_accuracy_percent": paper and paper.accuracy[data],
        "accuracy_percent": fmean(accuracy) if accuracy else None,
        "standard_deviation": stdev(accuracy) if len(accuracy) > 1 else None,
        "seeds": len(results),
        "diverged": len(group.failed),
        "epochs": fmean(epochs) if (epochs := [r.epochs for r in results if r.epochs is not None]) else None,
        "steps": fmean(r.steps for r in results) if results else None,
        "seconds": fmean(r.seconds for r in results) if results else None,
        "process_seconds": fmean(r.process_seconds for r in results) if results else None,
        "test_images": first and first.test_images,
        "paper_parameters": paper and paper.parameters,
        "parameters": first and first.parameters,
        "forward_flops": first and first.forward_flops,
        "training_flops": first and first.training_flops,
        "backend": first and first.backend,
        "hardware": listed(sorted({r.hardware for r in results})) if results else None,
        "torch": listed(sorted({r.torch for r in results})) if results else None,
        "date": listed(sorted({r.date for r in results})) if results else None,
    }
