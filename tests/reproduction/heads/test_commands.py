import json

import pytest
import torch

from reproduction.__main__ import run_command as main
from teka.training import Run, restore, train

NETWORK = Run.from_fields(
    image_size=8,
    train_size=64,
    validation_size=32,
    model="self_attention",
    position="table",
    content="softmax",
    dim=6,
    depth=2,
    heads=(3, 2),
    epochs=1,
    batch_size=32,
)
HEADS_FILES = {"head_centers.png", "attention_maps.png"}


@pytest.fixture(scope="module")
def attentive(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prune") / "run"
    run = Run.from_fields(
        image_size=8,
        train_size=64,
        validation_size=32,
        model="self_attention",
        position="generalized_quadratic",
        dim=6,
        depth=2,
        heads=3,
        epochs=1,
        batch_size=32,
    )
    train(run, folder, progress_bar=False)
    return folder


def test_prune_prints_counts_sizes_and_accuracies_and_writes_a_run(attentive, tmp_path, capsys):
    # The heads' Gaussians begin nearly round, so that at 1.0001 all are too thin.
    out = tmp_path / "pruned"
    options = ["--condition-number", "1.0001"]
    assert main(["prune", str(attentive), "--out", str(out), *options]) == 0
    shown = capsys.readouterr().out
    rows = {line.split()[0]: line.split() for line in shown.splitlines() if line.strip()}
    assert rows["all"] == ["all", "0", "6", "4"]
    restored = restore(out)
    parameters = sum(parameter.numel() for parameter in restored.model.parameters())
    assert float(rows["pruned"][1]) == parameters
    accuracy = json.loads((out / "evaluation.json").read_text())["accuracy"]
    assert float(rows["tuned"][-1]) == pytest.approx(accuracy, abs=1e-6)
    assert f"written: {out}" in shown
    assert restored.run.learning_rate == restore(attentive).run.learning_rate / 10
    assert restored.model(torch.zeros(1, 1, 8, 8)).shape == (1, 10)
    assert main(["evaluate", str(out)]) == 0


def test_bad_input_of_prune_is_one_line(attentive, trained, tmp_path, fails):
    assert "self_attention" in fails("prune", trained.folder, "--out", tmp_path / "out")
    assert "one with degenerate heads" in fails("prune", attentive, "--out", tmp_path / "out")
    assert "condition_number" in fails(
        "prune", attentive, "--out", tmp_path / "out", "--condition-number", "0"
    )
    assert "out" in fails("prune", attentive)
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def network_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("network") / "run"
    train(NETWORK, folder, command="teka train")
    return folder


def test_heads_writes_figures_into_the_folder_of_the_run(network_folder, capsys):
    assert main(["heads", str(network_folder)]) == 0
    assert {path.name for path in (network_folder / "heads").iterdir()} == HEADS_FILES
    shown = capsys.readouterr().out
    assert "window_3" in shown
    assert f"written: {network_folder / 'heads'}" in shown


def test_the_folder_can_be_chosen(network_folder, tmp_path):
    assert main(["heads", str(network_folder), "--out", str(tmp_path / "out")]) == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == HEADS_FILES


def test_bad_input_of_heads_is_one_line(trained, tmp_path, fails):
    assert "a run of model 'self_attention', got 'performer'" in fails("heads", trained.folder)
    assert "run.json" in fails("heads", tmp_path)


def test_run_without_a_record_is_an_error_with_its_folder(tmp_path, fails):
    train(NETWORK.replace(content=None), tmp_path / "run")
    (tmp_path / "run" / "heads.npz").unlink()
    assert "heads.npz" in fails("heads", tmp_path / "run")
