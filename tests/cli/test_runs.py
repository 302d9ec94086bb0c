import json
import multiprocessing
import os
import re
import socket
import sys

import numpy as np
import pytest
import torch
import yaml
from lightning.pytorch.utilities import rank_zero_only
from PIL import Image

from teka.cli import main
from teka.models import load
from teka.training import Run, restore

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


def test_train_options_are_saved_in_the_run(tmp_path, capsys):
    assert (
        main(
            [
                "train",
                *OPTIONS,
                "--position",
                "clipped",
                "--betas",
                "0.8",
                "0.9",
                "--out",
                str(tmp_path / "r"),
            ]
        )
        == 0
    )
    run = Run.load(tmp_path / "r")
    assert (run.position, run.dim, run.betas) == ("clipped", 8, (0.8, 0.9))
    assert re.search(
        r"at most 1 epoch, .* 1 epoch, 2 steps, .* parameters, 1 epoch, ",
        capsys.readouterr().out,
        re.DOTALL,
    )
    assert json.loads((tmp_path / "r" / "result.json").read_text())["command"].startswith(
        "teka train --image-size=8"
    )


def test_command_line_overrides_the_config_file(tmp_path):
    fields = {
        "image_size": 8,
        "train_size": 32,
        "validation_size": 16,
        "dim": 8,
        "depth": 2,
        "heads": 2,
        "epochs": 5,
        "betas": [0.8, 0.9],
        "random_flip": True,
        "data_dir": None,
        "loggers": [],
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(fields))
    main(
        [
            "train",
            "--config",
            str(tmp_path / "run.yaml"),
            "--epochs",
            "1",
            "--out",
            str(tmp_path / "r"),
        ]
    )
    run = Run.load(tmp_path / "r")
    assert (run.epochs, run.dim, run.betas) == (1, 8, (0.8, 0.9))
    assert (run.random_flip, run.data_dir) == (True, None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("epochz: 3", r"option in .*run\.yaml must be .*got 'epochz'\. Did you mean 'epochs'"),
        ("config: other.yaml", r"option in .*run\.yaml must be .*got 'config'"),
        ("epochs: {a: 1}", r"epochs must be a whole number, got \{'a': 1\}"),
        ("epochs: null", "epochs must be a whole number.*got None"),
        ("seed: 2026-01-01", "seed must be a whole number, got '2026-01-01'"),
        ("- epochs", "config must be a file of options and their values"),
    ],
)
def test_wrong_line_in_a_config_file_is_an_error(tmp_path, fails, content, message):
    (tmp_path / "run.yaml").write_text(content)
    assert re.search(message, fails("train", "--config", tmp_path / "run.yaml"))


@pytest.mark.parametrize("model", ["performer", "conv_performer"])
def test_saved_run_is_a_config_file(tmp_path, monkeypatch, model):
    runs = []

    def train(run, folder, **options):
        runs.append(run)
        return {"parameters": 1, "epochs": 1, "seconds": 1.0, "validation_accuracy": None}

    monkeypatch.setattr("teka.training.train", train)
    run = Run.from_fields(model=model, epochs=3, betas=(0.8, 0.9))
    run.save(tmp_path)
    words = ["--config", str(tmp_path / "run.json"), "--train-size", "16", "--seed", "2"]
    assert main(["train", *words, "--out", str(tmp_path / "r")]) == 0
    assert runs == [run.replace(train_size=16, seed=2)]


def test_interruption_names_the_command_that_resumes_a_started_run(tmp_path, monkeypatch, capsys):
    def interrupt(run, folder, **options):
        folder.mkdir()
        if run.seed:
            run.save(folder)
        raise KeyboardInterrupt

    monkeypatch.setattr("teka.training.train", interrupt)
    assert main(["train", "--seed", "0", "--out", str(tmp_path / "not started")]) == 130
    assert "resume" not in capsys.readouterr().out
    assert main(["train", "--seed", "1", "--out", str(tmp_path / "started run")]) == 130
    out = capsys.readouterr().out
    assert f"teka train --resume '{tmp_path}/started run'\n" in out


def test_default_folder_is_named_after_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["train", *OPTIONS, "--seed", "3"])
    assert Run.load(tmp_path / "runs" / "digits-rotary-squared_relu-3").seed == 3


def test_resume_accepts_no_other_options(trained_folder, fails, tmp_path):
    assert "resume" in fails("train", "--resume", trained_folder, "--epochs", "3")
    default = str(Run().epochs)
    message = fails("train", "--resume", trained_folder, "--epochs", default, "--out", "other")
    assert "resume must be used without --epochs, --out" in message
    (tmp_path / "devices.yaml").write_text("accumulate: 2\n")
    config = ["--config", str(tmp_path / "devices.yaml"), "--compile", "off"]
    assert main(["train", "--resume", str(trained_folder), *config]) == 0


def test_resuming_a_finished_run_says_that_it_is_finished(trained_folder, capsys):
    assert main(["train", "--resume", str(trained_folder)]) == 0
    first, summary = capsys.readouterr().out.splitlines()
    assert first == f"{trained_folder}: the run is already finished"
    assert "parameters, 1 epoch, " in summary


def test_sizes_of_several_stages_are_several_words(tmp_path):
    sizes = ["--dim", "8", "16", "--depth", "1", "1", "--heads", "2", "--pool", "mean"]
    options = [option for option in OPTIONS if option.split("=")[0] not in sizes]
    assert main(["train", *options, *sizes, "--out", str(tmp_path / "r")]) == 0
    run = Run.load(tmp_path / "r")
    assert (run.dim, run.depth, run.heads) == ((8, 16), (1, 1), 2)


def test_evaluation_names_the_classes_of_pictures(tmp_path, capsys):
    for number in range(20):
        folder = tmp_path / "my pictures" / ("thin line", "ö")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), 9 * number).save(folder / f"{number}.png")
    options = [*OPTIONS[3:], "--data", str(tmp_path / "my pictures"), "--out", str(tmp_path / "r")]
    assert main(["train", *options]) == 0
    assert main(["evaluate", str(tmp_path / "r")]) == 0
    assert re.search(r"\nthin line +[\d.]+ %\nö +[\d.]+ %\n", capsys.readouterr().out)


def test_class_without_test_images_has_no_accuracy(tmp_path, capsys):
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    test = {"test_images": images[:5], "test_labels": np.zeros(5, dtype=int)}
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(40) % 2, **test)
    options = [option for option in OPTIONS if "image-size" not in option]
    options += ["--data", str(tmp_path / "a.npz"), "--train-size=20"]
    assert main(["train", *options, "--out", str(tmp_path / "r")]) == 0
    assert main(["evaluate", str(tmp_path / "r")]) == 0
    assert "\n1      no test images\n" in capsys.readouterr().out
    saved = json.loads((tmp_path / "r" / "evaluation.json").read_text())
    assert saved["accuracy_by_class"][1] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--epochs", "x"], "epochs"),
        (["--epochs", "0"], "epochs"),
        (["--position", "rotatoin"], "Did you mean 'rotation'"),
        (["--kernel", "sofmax"], "Did you mean 'softmax'"),
        (["--data", "minst"], "Did you mean 'mnist'"),
        (["--dim", "10", "--heads", "3"], "heads"),
        (["--data", "mnist"], "data_dir"),
        (["--data", "mnist", "--data-dir", "/nowhere"], "/nowhere"),
        (["--loggers", "mlfow"], "Did you mean 'mlflow'"),
        (["--devices", "0"], "devices"),
    ],
)
def test_bad_train_options_are_errors_of_one_line(
    options, message, fails, tmp_path, unchecked_annotations
):
    assert message in fails("train", *options, "--out", tmp_path / "r")
    assert not (tmp_path / "r" / "run.json").exists()


def test_an_output_folder_that_is_a_file_is_an_error(tmp_path, fails):
    (tmp_path / "file").write_text("")
    assert "out" in fails("train", *OPTIONS, "--out", tmp_path / "file")


def test_run_on_a_custom_file_is_named_after_it_and_evaluated(tmp_path, monkeypatch, capsys):
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
    assert "on the test images of data/noise.npz" in capsys.readouterr().out


def test_options_override_the_recipe(tmp_path):
    out = tmp_path / "run"
    assert (
        main(["train", *OPTIONS, "--recipe", "horn2021", "--epochs", "1", "--out", str(out)]) == 0
    )
    run = Run.load(out)
    assert (run.optimizer, run.learning_rate, run.patience, run.epochs) == ("adam", 5e-5, 20, 1)
    fields = {
        "image_size": 8,
        "train_size": 32,
        "validation_size": 16,
        "dim": 8,
        "depth": 2,
        "heads": 2,
        "epochs": 1,
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({"recipe": "horn2021", **fields}))
    assert (
        main(["train", "--config", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "file")])
        == 0
    )
    run = Run.load(tmp_path / "file")
    assert (run.optimizer, run.learning_rate, run.patience, run.epochs) == ("adam", 5e-5, 20, 1)


def test_unknown_recipe_is_an_error_of_one_line(fails, tmp_path):
    assert "Did you mean 'horn2021'" in fails("train", "--recipe", "horn2012")
    (tmp_path / "run.yaml").write_text("recipe: horn2012\n")
    assert "Did you mean 'horn2021'" in fails("train", "--config", tmp_path / "run.yaml")


def test_baseline_is_trained_with_gradient_accumulation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = [
        "--image-size",
        "8",
        "--train-size",
        "40",
        "--validation-size",
        "20",
        "--epochs",
        "1",
        "--dim",
        "8",
    ]
    assert (
        main(["train", "--model", "linformer", *options, "--accumulate", "2", "--batch-size", "16"])
        == 0
    )
    folder = tmp_path / "runs" / "digits-linformer-0"
    assert Run.load(folder).model == "linformer"
    assert main(["evaluate", str(folder)]) == 0


def test_missing_logger_package_is_an_error_with_the_install_command(fails, tmp_path, monkeypatch):
    monkeypatch.setattr("teka.training.loggers.find_spec", lambda name: None)
    assert "pip install mlflow-skinny" in fails(
        "train", *OPTIONS, "--out", tmp_path / "r", "--loggers", "mlflow"
    )


def train_in_a_torchrun_process(rank: int, port: int, options: list[str]) -> None:
    """Train as one of two processes, with the environment variables that torchrun would set."""
    setattr(rank_zero_only, "rank", rank)  # noqa: B010, Lightning does not declare it
    names = (
        "RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
    )
    os.environ |= dict(
        zip(names, map(str, (rank, rank, 0, 2, 2, port, 7)), strict=True), MASTER_ADDR="127.0.0.1"
    )
    sys.exit(main(["train", *options]))


def test_only_the_first_torchrun_process_prints(tmp_path, capfd):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    arguments = port, [*OPTIONS, "--accelerator", "cpu", "--out", str(tmp_path / "r")]
    fork = multiprocessing.get_context("fork")
    processes = [
        fork.Process(target=train_in_a_torchrun_process, args=(rank, *arguments))
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
    captured = capfd.readouterr()
    assert [process.exitcode for process in processes] == [0, 0], captured.err
    *_, row, last = captured.out.splitlines()
    # One line each for the data, the model size, the epoch and the result.
    assert len(captured.out.splitlines()) == 4
    assert row.startswith("epoch 1 of 1: ")
    assert last.startswith(f"{tmp_path / 'r'}: ")
    assert json.loads((tmp_path / "r" / "result.json").read_text())["epochs"] == 1


def test_evaluate_prints_and_saves_the_accuracy(trained_folder, capsys):
    assert main(["evaluate", str(trained_folder)]) == 0
    saved = json.loads((trained_folder / "evaluation.json").read_text())
    printed = capsys.readouterr().out
    assert printed.startswith("evaluating ")
    assert f"{100 * saved['accuracy']:.2f} %" in printed


def test_a_folder_without_a_run_is_an_error(tmp_path, fails):
    assert "run.json" in fails("evaluate", tmp_path)


def test_export_saves_the_model_of_the_run(trained_folder, tmp_path, capsys):
    assert (
        main(
            ["export", str(trained_folder), "--out", str(tmp_path / "model"), "--dtype", "float16"]
        )
        == 0
    )
    assert f"written: {tmp_path / 'model'}" in capsys.readouterr().out
    images = torch.rand(2, 1, 16, 16)
    torch.testing.assert_close(
        load(tmp_path / "model")(images), restore(trained_folder).model(images), atol=1e-2, rtol=0
    )


def test_bad_export_options_are_errors_of_one_line(trained_folder, tmp_path, fails):
    assert "out" in fails("export", trained_folder)
    assert "dtype" in fails(
        "export", trained_folder, "--out", tmp_path / "model", "--dtype", "int8"
    )
    assert "run.json" in fails("export", tmp_path, "--out", tmp_path / "model")
    (tmp_path / "notes.txt").write_text("")
    assert "notes.txt" in fails("export", trained_folder, "--out", tmp_path)


def test_export_errors_of_the_folder_name_the_option_out(trained_folder, tmp_path, fails):
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "file").write_text("")
    for out in ("else", "else/file", "else/file/model"):
        message = fails("export", trained_folder, "--out", tmp_path / out)
        assert message.startswith("teka export: error: out must be ")
        assert message.count(str(tmp_path / "else")) == 1
