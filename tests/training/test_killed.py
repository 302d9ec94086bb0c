import dataclasses
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch

from teka.files import read_json
from teka.training import train
from teka.training.checkpoint import read_weights

SCRIPT = """
import sys
from pathlib import Path
import torch
from teka.training import Run, train
torch.set_num_threads(1)  # other numbers of threads add in another order
if __name__ == "__main__":
    train(Run.load(Path(sys.argv[1])), sys.argv[2], resume=True)
"""


@pytest.mark.parametrize("seed", [0, 1])
def test_killed_at_any_moment_a_run_resumes_to_the_numbers_of_an_uninterrupted_one(tiny, tmp_path, seed):
    run = dataclasses.replace(tiny, epochs=12, dropout=0.2, redraw_every=5)
    train(run, tmp_path / "whole")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    folder = tmp_path / "killed"
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "whole"), str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    limit = time.monotonic() + 120
    while not (folder / "checkpoints" / "last.ckpt").is_file() and time.monotonic() < limit:
        time.sleep(0.005)
    time.sleep(random.Random(seed).uniform(0, 0.5))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (folder / "result.json").is_file()
    assert train(run, folder, resume=True)["epochs"] == 12
    whole, resumed = (read_weights(tmp_path / name / "checkpoints" / "last.ckpt") for name in ("whole", "killed"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    accuracies = [read_json(tmp_path / name / "result.json")["validation_accuracy"] for name in ("whole", "killed")]
    assert accuracies[0] == accuracies[1]
