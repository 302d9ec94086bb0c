import json

import pytest
import torch

from teka.cli import main
from teka.training import Run, restore, train


@pytest.fixture(scope="module")
def attentive(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prune") / "run"
    run = Run.of(
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
    train(run, folder, progress_bar=False, throughput=False)
    return folder


def test_it_prints_counts_sizes_and_accuracies_and_writes_a_run(attentive, tmp_path, capsys):
    # The heads' Gaussians begin nearly round, so that at 1.0001 all are too thin.
    out = tmp_path / "pruned"
    options = ["--condition-number", "1.0001", "--epochs", "1", "--learning-rate", "1e-4"]
    assert main(["prune", str(attentive), "--out", str(out), *options]) == 0
    shown = capsys.readouterr().out
    rows = {line.split()[0]: line.split() for line in shown.splitlines() if line.strip()}
    assert rows["all"] == ["all", "6", "0", "6", "4", "2"]
    restored = restore(out)
    parameters = sum(parameter.numel() for parameter in restored.model.parameters())
    assert rows["pruned"][1] == f"{parameters:,}"
    accuracy = json.loads((out / "evaluation.json").read_text())["accuracy"]
    assert rows["trained"][-1] == f"{accuracy:.2%}"
    assert f"written: {out}" in shown
    assert restored.run.learning_rate == 1e-4
    assert restored.model(torch.zeros(1, 1, 8, 8)).shape == (1, 10)
    assert main(["evaluate", str(out)]) == 0


def test_bad_input_is_one_line(attentive, trained_folder, tmp_path, fails):
    assert "self_attention" in fails("prune", trained_folder, "--out", tmp_path / "out")
    assert "degenerate heads to spare" in fails("prune", attentive, "--out", tmp_path / "out")
    assert "condition_number" in fails("prune", attentive, "--out", tmp_path / "out", "--condition-number", "0")
    assert "epochs" in fails(
        "prune", attentive, "--out", tmp_path / "out", "--condition-number", "1.0001", "--epochs", "0"
    )
    assert "out" in fails("prune", attentive)
    assert not (tmp_path / "out").exists()
