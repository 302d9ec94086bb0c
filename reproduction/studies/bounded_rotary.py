"""Study that compares denominators of linear attention with rotary positions.

Some denominators bound the attention outputs, and others do not. The models are compared by their
accuracy and by the magnitude of their outputs and gradients.

    python -m reproduction.studies.bounded_rotary --data-dir data --processes 2
    python -m reproduction.studies.tables

The first command trains the models of bounded_rotary.yaml that have no results in the folder
bounded_rotary yet. The second command updates the tables in README.md.
"""

from pathlib import Path
from typing import Any

import cyclopts
from torch import Tensor, nn

from reproduction.studies.small_models import run_tuned_study, train_small_model
from reproduction.study import read_study
from reproduction.study.study import StudyModel
from teka.nn import Attention

STUDY = read_study(Path(__file__).with_suffix(".yaml"))
RESULTS = Path(__file__).with_suffix("")
SELECTION_SEEDS = range(6)
EVALUATION_SEEDS = range(10, 16)
# Values of λ in the denominator. `Run` has no option for them.
LENGTH_SHARES = {"mixed, λ = 0.1": 0.1, "mixed, λ = 0.3": 0.3}


def record_output_ratios(layer: Attention, ratios: list[float]) -> None:
    """Register hooks that record how much larger an attention layer's outputs are than its values.

    Each call of the layer appends one ratio to `ratios`: the largest absolute attention output
    divided by the largest absolute entry of the value vectors.
    """
    largest_values = []

    def record_value(module: nn.Module, inputs: Any, output: Tensor) -> None:
        largest_values.append(output.detach().abs().max().item())

    def record_ratio(module: nn.Module, inputs: tuple[Tensor]) -> None:
        ratios.append(inputs[0].abs().max().item() / largest_values.pop())

    layer.value.register_forward_hook(record_value)
    layer.output.register_forward_pre_hook(record_ratio)


def train_and_measure_outputs(
    study_model: StudyModel, folder: Path, **options: Any
) -> dict[str, Any]:
    """Train a model with one of the denominators, and measure how large its outputs become."""
    ratios: list[float] = []

    def change_attention(layer: Attention) -> None:
        length_share = LENGTH_SHARES.get(study_model.labels["candidate"])
        if length_share is not None:
            layer.relative.options["length_share"] = length_share
        record_output_ratios(layer, ratios)

    _, _, result = train_small_model(study_model, change_attention, **options)
    return {**result, "largest_output": max(ratios)}


def main(*, data_dir: str | None = None, processes: int = 1) -> None:
    """Tune the learning rate for each denominator, and train all models without saved results."""
    *_, largest_rate = STUDY.factors["rate"]
    run_tuned_study(
        STUDY,
        RESULTS,
        train_and_measure_outputs,
        last_rate=largest_rate,
        data_dir=data_dir,
        processes=processes,
    )


if __name__ == "__main__":
    cyclopts.run(main)
