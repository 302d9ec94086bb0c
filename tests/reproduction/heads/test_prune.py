import dataclasses
import json

import pytest
import torch

from reproduction.baselines import SelfAttentionNetwork
from reproduction.heads.prune import PRUNING_FILE, prune_network
from teka.audit import AuditSettings, audit, axis_shifts
from teka.models import load
from teka.nn import LearnedRelativeKernel
from teka.training import Run, evaluate, export, restore, train

RUN = Run.from_fields(
    image_size=12,
    train_size=64,
    validation_size=32,
    model="self_attention",
    position="generalized_quadratic",
    dim=6,
    depth=2,
    heads=3,
    epochs=2,
    batch_size=32,
    learning_rate=1e-8,  # changes no parameter by more than rounding
)


@pytest.fixture(scope="module")
def run_with_degenerate_heads(tmp_path_factory):
    """Return a run with a head that attends everywhere and a layer that attends to stripes."""
    folder = tmp_path_factory.mktemp("prune") / "run"
    train(RUN, folder, progress_bar=False)
    trained = restore(folder)
    assert isinstance(trained.model, SelfAttentionNetwork)
    first, second = (attention.relative for attention in trained.model.attention_layers())
    assert isinstance(first, LearnedRelativeKernel)
    assert isinstance(second, LearnedRelativeKernel)
    with torch.no_grad():
        first.precision_factor[1] *= 1e-4
        second.precision_factor.copy_(
            torch.diag_embed(torch.tensor([[1e3, 1.0], [1e4, 1.0], [5e2, 1.0]]))
        )
    return trained


@pytest.fixture(scope="module")
def pruned_run(run_with_degenerate_heads, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pruned") / "deep" / "run"
    pruning = prune_network(run_with_degenerate_heads, folder, command="teka prune")
    return folder, pruning


def test_degenerate_heads_are_removed_except_one_per_layer(pruned_run):
    folder, (heads, models) = pruned_run
    assert heads.pruned.tolist() == [False, True, False, True, True, False]
    assert Run.load(folder) == RUN.replace(heads=(2, 1), epochs=1, learning_rate=1e-8 / 10)
    assert models.parameters.pruned == models.parameters.before - 3 * (6 * 6 + 2 + 4)
    assert models.flops.pruned < models.flops.before
    sizes = models[["parameters", "flops"]]
    assert sizes.loc["tuned"].equals(sizes.loc["pruned"])


def test_training_starts_from_the_weights_of_the_remaining_heads(
    pruned_run, run_with_degenerate_heads
):
    folder, _ = pruned_run
    expected = run_with_degenerate_heads.model.copy_without_heads([[1], [0, 1]])
    for name, parameter in restore(folder).model.named_parameters():
        torch.testing.assert_close(parameter, expected.get_parameter(name), atol=1e-6, rtol=1e-6)


def test_accuracies_before_training_are_those_of_the_networks(
    pruned_run, run_with_degenerate_heads
):
    _, (_, models) = pruned_run
    model, test = run_with_degenerate_heads.model, run_with_degenerate_heads.dataset.test
    for name, network in (("before", model), ("pruned", model.copy_without_heads([[1], [0, 1]]))):
        with torch.inference_mode():
            correct = (network(test.images).argmax(dim=1) == test.labels).double().mean()
        assert models.accuracy[name] == pytest.approx(correct.item(), abs=1e-9)


def test_prune_network_saves_a_finished_run_with_the_pruned_heads(
    pruned_run, run_with_degenerate_heads
):
    folder, (_, models) = pruned_run
    written = json.loads((folder / PRUNING_FILE).read_text())
    assert written["run"] == str(run_with_degenerate_heads.folder)
    assert [head["pruned"] for head in written["heads"]] == [False, True, False, True, True, False]
    assert written["condition_number"] == 1e5
    assert written["tuned"]["accuracy"] == models.accuracy.tuned
    result = json.loads((folder / "result.json").read_text())
    assert (result["command"], result["parameters"]) == ("teka prune", models.parameters.pruned)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_pruned_run_can_be_evaluated_audited_exported_and_pruned(pruned_run, tmp_path):
    folder, (_, models) = pruned_run
    trained = restore(folder)
    assert evaluate(trained).accuracy == models.accuracy.tuned
    settings = AuditSettings(shifts=axis_shifts(1), parts=())
    report = audit(trained.model, trained.dataset.test.images, settings=settings)
    assert report.metrics[0].num_images == len(trained.dataset.test)
    loaded = load(export(trained, tmp_path / "model"))
    images = trained.dataset.test.images[:5]
    torch.testing.assert_close(loaded(images), trained.model(images))
    _, again = prune_network(trained, tmp_path / "again", condition_number=1.01)
    assert Run.load(tmp_path / "again").heads == (1, 1)
    assert again.accuracy.before == models.accuracy.tuned


def test_run_without_degenerate_heads_is_an_error_with_thresholds(pruned_run, tmp_path):
    folder, _ = pruned_run
    with pytest.raises(ValueError, match=r"degenerate heads, .*The largest condition_number"):
        prune_network(restore(folder), tmp_path / "again", condition_number=1e12)
    assert not any(tmp_path.iterdir())


def test_threshold_can_be_infinite(run_with_degenerate_heads, tmp_path):
    prune_network(run_with_degenerate_heads, tmp_path / "run", condition_number=float("inf"))
    content = json.loads((tmp_path / "run" / PRUNING_FILE).read_text())
    assert [head["pruned"] for head in content["heads"]] == [False, True, *[False] * 4]
    assert content["condition_number"] is None


def test_a_run_of_another_model_is_an_error(trained, tmp_path):
    with pytest.raises(
        ValueError, match=r"run must be a run of model 'self_attention'.*got 'performer'"
    ):
        prune_network(trained, tmp_path / "out")


def test_a_folder_with_files_is_an_error(run_with_degenerate_heads, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for out in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(ValueError, match=r"out must be a folder that is empty"):
            prune_network(run_with_degenerate_heads, out)


def test_nothing_is_written_if_the_training_fails(run_with_degenerate_heads, tmp_path):
    broken = run_with_degenerate_heads.model.copy_without_heads([[], []])
    with torch.no_grad():
        broken.head.weight.fill_(float("nan"))
    run = dataclasses.replace(run_with_degenerate_heads, model=broken)
    with pytest.raises(FloatingPointError):
        prune_network(run, tmp_path / "out")
    assert not any(tmp_path.iterdir())
