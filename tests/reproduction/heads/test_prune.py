import dataclasses
import json

import pytest
import torch

from reproduction.baselines import SelfAttentionNetwork
from reproduction.heads.prune import PRUNING_FILE, beginning_with, prune
from teka.models import load
from teka.nn import RelativeKernel
from teka.training import Run, evaluate, export, restore, train
from teka.training.checkpoint import CHECKPOINTS, LAST, load_weights
from teka.training.shift.measure import ShiftSettings, measure

ATTENTIVE = Run.of(
    image_size=12, train_size=64, validation_size=32, model="self_attention", position="generalized_quadratic",
    dim=6, depth=2, heads=3, epochs=2, batch_size=32,
)  # fmt: skip


@pytest.fixture(scope="module")
def with_degenerate_heads(tmp_path_factory):
    """A run of which one head of the first layer looks everywhere, and all of the second along a stripe."""
    folder = tmp_path_factory.mktemp("prune") / "run"
    train(ATTENTIVE, folder, progress_bar=False, throughput=False)
    trained = restore(folder)
    assert isinstance(trained.model, SelfAttentionNetwork)
    first, second = (attention.relative for attention in trained.model.attentions())
    assert isinstance(first, RelativeKernel)
    assert isinstance(second, RelativeKernel)
    with torch.no_grad():
        first.precision_factor[1] *= 1e-4
        second.precision_factor.copy_(
            torch.diag_embed(torch.tensor([[1e3, 1.0], [1e4, 1.0], [5e2, 1.0]]))
        )
    return trained


@pytest.fixture(scope="module")
def pruned(with_degenerate_heads, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pruned") / "deep" / "run"
    pruning = prune(
        with_degenerate_heads, folder, learning_rate=1e-9, command="teka prune", progress_bar=False
    )
    return folder, pruning


def test_the_degenerate_heads_are_gone_but_for_one_of_a_layer(pruned):
    folder, pruning = pruned
    assert [layer.prunable for layer in pruning.layers] == [(1,), (0, 1)]
    assert Run.load(folder) == ATTENTIVE.replace(heads=(2, 1), epochs=1, learning_rate=1e-9)
    assert pruning.pruned.parameters == pruning.before.parameters - 3 * (6 * 6 + 2 + 4)
    assert pruning.pruned.flops < pruning.before.flops
    assert (pruning.tuned.parameters, pruning.tuned.flops) == (
        pruning.pruned.parameters,
        pruning.pruned.flops,
    )


def test_training_goes_on_from_the_weights_that_are_left(pruned, with_degenerate_heads):
    folder, _ = pruned
    expected = with_degenerate_heads.model.without_heads([[1], [0, 1]])
    for name, parameter in restore(folder).model.named_parameters():
        torch.testing.assert_close(parameter, expected.get_parameter(name), atol=1e-6, rtol=1e-6)


def test_the_accuracies_are_those_of_the_models(pruned, with_degenerate_heads):
    _, pruning = pruned
    model, test = with_degenerate_heads.model, with_degenerate_heads.dataset.test
    for one, found in (
        (model, pruning.before),
        (model.without_heads([[1], [0, 1]]), pruning.pruned),
    ):
        with torch.inference_mode():
            right = (one(test.images).argmax(dim=1) == test.labels).double().mean()
        assert found.accuracy == pytest.approx(right.item(), abs=1e-9)


def test_what_is_written_is_a_finished_run_with_what_was_pruned(pruned, with_degenerate_heads):
    folder, pruning = pruned
    written = json.loads((folder / PRUNING_FILE).read_text())
    assert written["run"] == str(with_degenerate_heads.folder)
    assert [layer["pruned"] for layer in written["layers"]] == [[1], [0, 1]]
    assert written["condition_number"] == 1e5
    assert written["tuned"]["accuracy"] == pruning.evaluation.accuracy
    result = json.loads((folder / "result.json").read_text())
    assert (result["command"], result["parameters"]) == ("teka prune", pruning.pruned.parameters)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_it_is_evaluated_shifted_exported_and_pruned_again_as_every_run_is(pruned, tmp_path):
    folder, pruning = pruned
    trained = restore(folder)
    assert evaluate(trained).accuracy == pruning.evaluation.accuracy
    assert measure(trained, ShiftSettings(max_shift=1)).num_images > 0
    loaded = load(export(trained, tmp_path / "model"))
    images = trained.dataset.test.images[:5]
    torch.testing.assert_close(loaded(images), trained.model(images))
    again = prune(trained, tmp_path / "again", condition_number=1.01, epochs=1, progress_bar=False)
    assert Run.load(tmp_path / "again").heads == (1, 1)
    assert again.before.accuracy == pruning.tuned.accuracy


def test_without_degenerate_heads_to_spare_nothing_is_written_and_the_thresholds_to_try_are_said(
    pruned, tmp_path
):
    folder, _ = pruned
    with pytest.raises(
        ValueError, match=r"degenerate heads to spare, .*The smallest .* condition number"
    ):
        prune(restore(folder), tmp_path / "again", condition_number=1e12)
    assert not any(tmp_path.iterdir())


def test_a_threshold_may_be_infinite(with_degenerate_heads, tmp_path):
    prune(
        with_degenerate_heads,
        tmp_path / "run",
        condition_number=float("inf"),
        epochs=1,
        progress_bar=False,
    )
    content = json.loads((tmp_path / "run" / PRUNING_FILE).read_text())
    assert [layer["pruned"] for layer in content["layers"]] == [[1], []]
    assert content["condition_number"] is None


def test_a_run_of_another_model_is_an_error(trained, tmp_path):
    with pytest.raises(
        ValueError, match=r"run must be a run of model 'self_attention'.*got 'performer'"
    ):
        prune(trained, tmp_path / "out")


def test_a_folder_with_something_in_it_is_left_alone(with_degenerate_heads, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for out in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(ValueError, match=r"out must be a folder that is empty"):
            prune(with_degenerate_heads, out)


def test_where_training_fails_nothing_is_left(with_degenerate_heads, tmp_path):
    broken = with_degenerate_heads.model.without_heads([[], []])
    with torch.no_grad():
        broken.head.weight.fill_(float("nan"))
    run = dataclasses.replace(with_degenerate_heads, model=broken)
    with pytest.raises(FloatingPointError):
        prune(run, tmp_path / "out", progress_bar=False)
    assert not any(tmp_path.iterdir())


def test_training_begins_from_them_and_goes_on_from_a_checkpoint(trained, tmp_path):
    # At this learning rate nothing moves by more than rounding.
    run = trained.run.replace(learning_rate=1e-30, epochs=1)
    start = beginning_with(trained.model.state_dict())
    train(
        run,
        tmp_path / "run",
        dataset=trained.dataset,
        callbacks=[start],
        progress_bar=False,
        throughput=False,
    )
    model = run.make_model(image_size=(8, 8), in_channels=1, num_classes=10)
    load_weights(model, tmp_path / "run" / CHECKPOINTS / LAST)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter, trained.model.get_parameter(name))
    (tmp_path / "run" / "result.json").unlink()
    other = {name: torch.zeros_like(one) for name, one in model.state_dict().items()}
    options = {"dataset": trained.dataset, "progress_bar": False, "throughput": False}
    train(run, tmp_path / "run", resume=True, callbacks=[beginning_with(other)], **options)
    resumed = run.make_model(image_size=(8, 8), in_channels=1, num_classes=10)
    load_weights(resumed, tmp_path / "run" / CHECKPOINTS / LAST)
    for name, parameter in resumed.named_parameters():
        torch.testing.assert_close(parameter, model.get_parameter(name))
