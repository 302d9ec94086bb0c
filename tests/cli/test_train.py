import json
import subprocess
import sys

import numpy as np
import pytest
import yaml

from teka.cli import main
from teka.training import Run

OPTIONS = (
    "--image-size=8",
    "--train-size=32",
    "--validation-size=16",
    "--dim=8",
    "--depth=2",
    "--heads=2",
    "--epochs=1",
    "--batch-size=16",
)


def test_options_become_the_run(tmp_path, capsys):
    assert (
        main(["train", *OPTIONS, "--position", "clipped", "--betas", "[0.8, 0.9]", "--out", str(tmp_path / "r")]) == 0
    )
    run = Run.load(tmp_path / "r")
    assert (run.position, run.dim, run.betas) == ("clipped", 8, (0.8, 0.9))
    assert "parameters" in capsys.readouterr().out
    assert json.loads((tmp_path / "r" / "result.json").read_text())["command"].startswith("teka train --image-size=8")


def test_a_file_gives_options_and_the_command_line_overrides_it(tmp_path):
    fields = {"image_size": 8, "train_size": 32, "validation_size": 16, "dim": 8, "depth": 2, "heads": 2, "epochs": 5}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(fields))
    main(["train", "--config", str(tmp_path / "run.yaml"), "--epochs", "1", "--out", str(tmp_path / "r")])
    assert (Run.load(tmp_path / "r").epochs, Run.load(tmp_path / "r").dim) == (1, 8)


def test_an_unknown_key_in_a_file_is_an_error(tmp_path, fails):
    (tmp_path / "run.yaml").write_text("epochz: 3\n")
    assert "epochz" in fails("train", "--config", tmp_path / "run.yaml")


def test_a_run_without_a_folder_is_named_after_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["train", *OPTIONS, "--seed", "3"])
    assert Run.load(tmp_path / "runs" / "digits-rotary-squared_relu-3").seed == 3


def test_resume_takes_no_other_options(trained_folder, fails):
    assert "resume" in fails("train", "--resume", trained_folder, "--epochs", "3")
    assert main(["train", "--resume", str(trained_folder)]) == 0


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--epochs", "x"], "epochs"),
        (["--epochs", "0"], "epochs"),
        (["--position", "rotatoin"], "did you mean 'rotation'"),
        (["--kernel", "sofmax"], "did you mean 'softmax'"),
        (["--data", "minst"], "did you mean 'mnist'"),
        (["--dim", "10", "--heads", "3"], "heads"),
        (["--data", "mnist"], "data_dir"),
        (["--data", "mnist", "--data-dir", "/nowhere"], "/nowhere"),
        (["--loggers", "mlfow"], "did you mean 'mlflow'"),
        (["--devices", "0"], "devices"),
    ],
)
def test_bad_options_are_one_line_that_names_them(options, named, fails, tmp_path, as_users_run_it):
    assert named in fails("train", *options, "--out", tmp_path / "r")
    assert not (tmp_path / "r" / "run.json").exists()


def test_an_output_folder_that_is_a_file_is_an_error(tmp_path, fails):
    (tmp_path / "file").write_text("")
    assert "out" in fails("train", *OPTIONS, "--out", tmp_path / "file")


def test_a_run_on_a_file_of_ones_own_is_named_after_it_and_evaluated(tmp_path, monkeypatch, capsys):
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (50, 8, 8), dtype=np.uint8)
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "noise.npz", images=images, labels=np.arange(50) % 3)
    monkeypatch.chdir(tmp_path)
    options = [option for option in OPTIONS if "size=" not in option or "batch" in option]
    assert main(["train", "--data", "data/noise.npz", *options]) == 0
    folder = tmp_path / "runs" / "noise-rotary-squared_relu-0"
    assert Run.load(folder).data == "data/noise.npz"
    assert main(["evaluate", str(folder)]) == 0
    assert "on 10 test images of data/noise.npz" in capsys.readouterr().out


def test_a_recipe_decides_how_it_is_trained_and_other_options_go_before_it(tmp_path):
    out = tmp_path / "run"
    assert main(["train", *OPTIONS, "--recipe", "horn2021", "--epochs", "1", "--out", str(out)]) == 0
    run = Run.load(out)
    assert (run.optimizer, run.learning_rate, run.patience, run.epochs) == ("adam", 5e-5, 20, 1)


def test_an_unknown_recipe_is_an_error_of_one_line(fails):
    assert "did you mean 'horn2021'" in fails("train", "--recipe", "horn2012")


def test_a_baseline_is_trained_in_two_parts_a_step_and_named_after_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--image-size", "8", "--train-size", "40", "--validation-size", "20", "--epochs", "1", "--dim", "8"]
    assert main(["train", "--model", "linformer", *options, "--accumulate", "2", "--batch-size", "16"]) == 0
    folder = tmp_path / "runs" / "digits-linformer-0"
    assert Run.load(folder).model == "linformer"
    assert main(["evaluate", str(folder)]) == 0


def test_a_service_that_is_not_installed_is_one_line_with_the_command_that_installs_it(fails, tmp_path, monkeypatch):
    monkeypatch.setattr("teka.training.loggers.find_spec", lambda name: None)
    assert "pip install mlflow-skinny" in fails("train", *OPTIONS, "--out", tmp_path / "r", "--loggers", "mlflow")


def test_of_several_processes_that_torchrun_starts_the_first_prints(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    teka = [sys.executable, "-c", "import sys, teka.cli; sys.exit(teka.cli.main())"]
    options = [*OPTIONS, "--accelerator", "cpu", "--out", str(tmp_path / "r")]
    finished = subprocess.run([*command, *teka, "train", *options], capture_output=True, text=True, timeout=240)
    assert finished.returncode == 0, finished.stderr
    *_, row, last = finished.stdout.splitlines()
    assert len(finished.stdout.splitlines()) == 4  # two are the table's heading
    assert row.split()[0] == "1/1"
    assert last.startswith(f"{tmp_path / 'r'}: ")
    assert json.loads((tmp_path / "r" / "result.json").read_text())["peak_source"].startswith("2 × ")
