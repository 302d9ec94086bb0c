import csv
import re

import pytest
import torch

from teka.training import Execution, train
from tests.training.interrupt import InterruptAt


@pytest.fixture
def run(tiny):
    """Return a run of two epochs with 12 steps each."""
    return tiny.replace(batch_size=8)


def test_progress_is_printed_after_ten_steps_and_every_epoch(run, tmp_path, capsys):
    train(run, tmp_path / "run")
    start, first, *lines = capsys.readouterr().out.splitlines()
    assert start == f"training performer on digits, at most 2 epochs, in {tmp_path / 'run'}"
    assert re.fullmatch(
        r"96 training images, [\d,]+ parameters, 2 epochs, 24 steps, precision float32", first
    )
    speed = r"[\d,]+ images/s, 0:\d\d:\d\d left"
    assert re.fullmatch(rf"step 10 of 24: loss [\d.]+, {speed}", lines[0])
    scores = r"loss [\d.]+, accuracy [\d.]+ %;"
    epochs = [line for line in lines if line.startswith("epoch")]
    for number, line in enumerate(epochs, start=1):
        expected = rf"epoch {number} of 2: training {scores} validation {scores} {speed}"
        assert re.fullmatch(expected, line), line
    assert len(epochs) == 2
    assert epochs[-1].endswith(", 0:00:00 left")


def test_step_with_gradient_accumulation_counts_once(run, tmp_path, capsys):
    train(run, tmp_path / "run", execution=Execution(accumulate=2))
    assert "step 10 of 24: " in capsys.readouterr().out


def test_resumed_run_continues_with_the_next_epoch(run, tmp_path, capsys):
    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path / "run", callbacks=[InterruptAt(13)])
    capsys.readouterr()
    train(run, tmp_path / "run", resume=True)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("step 22 of 24: ") for line in lines)
    assert [line[:12] for line in lines if line.startswith("epoch")] == ["epoch 2 of 2"]


def test_run_without_progress_bar_prints_nothing_and_gives_equal_weights(run, tmp_path, capsys):
    weights = []
    for progress_bar in (True, False):
        folder = tmp_path / str(progress_bar)
        capsys.readouterr()
        result = train(run.replace(epochs=1), folder, progress_bar=progress_bar)
        assert (capsys.readouterr().out != "") == progress_bar
        weights.append(torch.load(folder / "checkpoints" / "last.ckpt")["state_dict"])
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    with (folder / "logs" / "version_0" / "metrics.csv").open(encoding="utf-8") as file:
        logged = [row["images_per_second"] for row in csv.DictReader(file)]
    assert any(float(speed) > 0 for speed in logged if speed)
    assert result["train_images_per_second"] > 0


def test_progress_has_no_validation_scores_without_validation_images(tiny, tmp_path, capsys):
    run = tiny.replace(epochs=1, validation_size=0, batch_size=96)
    train(run, tmp_path / "run")
    assert re.search(
        r"epoch 1 of 1: training loss [\d.]+, accuracy [\d.]+ %; speed not measured yet",
        capsys.readouterr().out,
    )
