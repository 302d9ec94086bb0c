"""The command `prune`, which removes degenerate attention heads and fine-tunes the network.

A degenerate head attends to all tokens equally, or only to a thin stripe of tokens.
"""

import math
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from lightning.pytorch.callbacks import LambdaCallback
from torch import Tensor, nn

from reproduction.baselines import SelfAttentionNetwork
from reproduction.study.model_metrics import count_flops_per_image, measure_accuracy
from teka.cli.app import CommandLine
from teka.data import Dataset
from teka.errors import wrong_argument, wrong_value
from teka.files import atomic_directory, resolve_path, write_bytes
from teka.functional import GeneralizedQuadraticBias, QuadraticBias
from teka.memory import count_parameters
from teka.nn.relative import RelativeModule
from teka.provenance import gather_provenance
from teka.training import TrainedRun, evaluate, restore, train
from teka.training.checkpoint import BEST, CHECKPOINTS, load_weights

PRUNING_FILE = "pruning.json"
LARGEST_PRECISION = 1e-5
CONDITION_NUMBER = 1e5


def prune_run(
    run: Path,
    /,
    *,
    out: Path,
    condition_number: float = CONDITION_NUMBER,
    data_dir: str | None = None,
    command: CommandLine = "",
) -> None:
    """Remove the degenerate heads of a self_attention network, and fine-tune it.

    A degenerate head attends to all tokens equally, or only to a thin stripe of tokens. Fine-tuning
    takes a third of the original number of epochs. The output folder contains a finished run.

    Args:
        run: Folder of a finished run with position quadratic or generalized_quadratic.
        out: Output folder, which must be new or empty.
        condition_number: Also remove heads that attend to a thin stripe: the largest eigenvalue
            of their precision matrix is more than this multiple of the smallest eigenvalue.
        data_dir: Folder with the files of the data set.
        command: The command line.
    """
    trained = restore(run, data_dir=data_dir)
    heads, models = prune_network(trained, out, condition_number=condition_number, command=command)
    degenerate: Any = heads[["everywhere", "thin", "pruned"]]
    counts = degenerate.groupby("layer").sum()
    counts.loc["all"] = counts.sum()
    print(counts.to_string(), models.to_string(), f"written: {out}", sep="\n\n")


def prune_network(
    trained: TrainedRun,
    out: str | Path,
    *,
    condition_number: float = CONDITION_NUMBER,
    command: str = "",
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Remove the degenerate heads of a trained network, and fine-tune it.

    A degenerate head attends to all tokens equally, or only to a thin stripe. Fine-tuning uses the
    original recipe with a third of the epochs and a tenth of the learning rate, as in the published
    code. The output folder contains a finished run and the additional file `pruning.json`. It is
    written atomically.

    Source: Cordonnier et al. 2020, A.1.

    Args:
        trained: A run of "self_attention" with position "quadratic" or "generalized_quadratic",
            without content.
        out: Output folder, which must be new or empty.
        condition_number: Threshold of `find_degenerate_heads`.
        command: Command line that is saved with the results.

    Returns:
        The table of `find_degenerate_heads`, and a table with the parameters, FLOPs per image and
        test accuracy of the model before pruning, after pruning and after fine-tuning.

    Raises:
        ValueError: The run has another model or no head to prune, or `out` is not empty.
        FloatingPointError: The loss diverged.
    """
    folder = resolve_path("out", out)
    dataset = trained.dataset
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise wrong_value("out", str(out), "a folder that is empty or does not exist")
    model = require_self_attention_network(trained)
    heads = find_degenerate_heads(model, condition_number)
    if not heads.pruned.any():
        largest = f"The largest condition_number is {heads.condition_number.max():.3g}."
        raise wrong_value("run", str(trained.folder), "one with degenerate heads", largest)
    pruned = model.copy_without_heads(
        [layer.pruned.to_numpy().nonzero()[0].tolist() for _, layer in heads.groupby("layer")]
    )
    run = trained.run.replace(
        heads=pruned.heads,
        epochs=math.ceil(trained.run.epochs / 3),
        learning_rate=trained.run.learning_rate / 10,
    )
    models = {"before": _measure_model(model, dataset), "pruned": _measure_model(pruned, dataset)}
    weights = {f"model.{name}": tensor for name, tensor in pruned.state_dict().items()}
    start = LambdaCallback(setup=lambda _, classifier, stage: classifier.load_state_dict(weights))
    with atomic_directory("out", folder) as new:
        result = train(run, new, command=command, dataset=dataset, callbacks=[start])
        load_weights(pruned, new / CHECKPOINTS / BEST)
        evaluation = evaluate(TrainedRun(new, run, pruned, dataset, result), command=command)
        models["tuned"] = models["pruned"] | {"accuracy": evaluation.accuracy}
        content = {
            **gather_provenance(command),
            "run": str(trained.folder),
            "largest_precision": LARGEST_PRECISION,
            "condition_number": condition_number,
            "heads": heads.reset_index().to_dict("records"),
            **models,
        }
        # pandas writes infinity, which is not JSON, as null.
        content = pd.Series(content).to_json(force_ascii=False, indent=2)
        write_bytes(new / PRUNING_FILE, f"{content}\n".encode())
    return heads, pd.DataFrame(models).T


def require_self_attention_network(trained: TrainedRun) -> SelfAttentionNetwork:
    """Return the network of a run, or raise an error if it is not a `SelfAttentionNetwork`.

    Raises:
        ValueError: The run has another model.
    """
    if not isinstance(trained.model, SelfAttentionNetwork):
        raise wrong_value("run", trained.run.model, "a run of model 'self_attention'")
    return trained.model


@torch.no_grad()
def find_degenerate_heads(
    model: SelfAttentionNetwork, condition_number: float = CONDITION_NUMBER
) -> pd.DataFrame:
    """Find the heads of a network that attend to all tokens equally or to a thin stripe.

    The attention of a head is a Gaussian of the offset with the precision matrix Σ⁻¹, which has
    the eigenvalues λ. The head attends to all tokens equally if λ_max < 10⁻⁵ per squared token. It
    attends to a thin stripe if λ_max / λ_min > `condition_number`. The Gaussians of the position
    "quadratic" are round, so that they never attend to a stripe.

    Source: Cordonnier et al. 2020, A.1, with a condition number of 10⁵. Their code has 1,000.

    Args:
        model: Network whose heads attend by position alone, with Gaussians.
        condition_number: Largest λ_max / λ_min of a head that is not degenerate.

    Returns:
        A table with one row per head, indexed by layer and head. The columns are
        "largest_precision" (λ_max), "condition_number" (λ_max / λ_min), "everywhere" and "thin" for
        the two kinds of degenerate heads, and "pruned". If all heads of a layer are degenerate, the
        roundest is not pruned, because a layer needs a head.

    Raises:
        ValueError: The threshold is invalid, or the heads are not Gaussians of position alone.
    """
    if not condition_number >= 1:
        raise wrong_value("condition_number", condition_number, "a number of at least 1")
    layers = []
    for attention in model.attention_layers():
        if attention.query is not None:
            expected = "a network whose heads attend by position alone"
            raise wrong_argument("model", "one with content", expected)
        eigenvalues = _compute_precision_eigenvalues(attention.relative)
        largest = eigenvalues.amax(dim=1)
        condition = (largest / eigenvalues.amin(dim=1)).nan_to_num(nan=1.0, posinf=math.inf)
        heads = pd.DataFrame({"largest_precision": largest, "condition_number": condition})
        heads["everywhere"] = heads.largest_precision < LARGEST_PRECISION
        heads["thin"] = heads.condition_number > condition_number
        heads["pruned"] = heads.everywhere | heads.thin
        if heads.pruned.all():
            roundest = heads.sort_values(["everywhere", "condition_number"]).index[0]
            heads.loc[roundest, "pruned"] = False
        layers.append(heads)
    return pd.concat(layers, keys=range(1, len(layers) + 1), names=["layer", "head"])


def _compute_precision_eigenvalues(relative: RelativeModule | None) -> Float[Tensor, "heads axes"]:
    """Return the eigenvalues of the precision matrix of each head's Gaussian, in float64."""
    kernel = None if relative is None else relative()
    if isinstance(kernel, GeneralizedQuadraticBias):
        # Σ⁻¹ = LᵀL. Squared singular values of L keep small eigenvalues that LᵀL would round.
        return torch.linalg.svdvals(kernel.precision_factor.cpu().double()).square()
    if isinstance(kernel, QuadraticBias):
        return 2 * kernel.precision.cpu().double()[:, None].expand_as(kernel.center)
    name = None if kernel is None else kernel.name
    raise wrong_value("the model's relative kernel", name, "'quadratic' or 'generalized_quadratic'")


def _measure_model(model: nn.Module, dataset: Dataset) -> dict[str, Any]:
    return {
        "parameters": count_parameters(model),
        "flops": count_flops_per_image(model, dataset),
        "accuracy": measure_accuracy(model, dataset.test),
    }
