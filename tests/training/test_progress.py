import copy
import csv
import io
import json
import re

import pytest
import torch

from teka.models.model_config import MODELS
from teka.training import Execution, Run, progress, train
from teka.training.progress import (
    COLUMNS,
    MEASURED,
    WARMUP_STEPS,
    Peak,
    Throughput,
    _number,
    _time,
    peak,
    training_flops_per_image,
)
from tests.training.interrupt import InterruptAt


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_where_there_is_no_terminal_there_is_a_heading_and_a_plain_row_for_each_epoch(
    tiny, tmp_path, capsys
):
    train(tiny, tmp_path / "run")
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert shown.isascii()
    assert not set(shown) & {"\r", "\x1b"}
    assert lines[1].split() == [column[1] for column in COLUMNS]
    assert [line.split()[0] for line in lines[2:]] == ["1/2", "2/2"]
    cells = lines[3].split()
    assert len(cells) == len(COLUMNS)
    assert cells[-1] == "0:00"
    assert "-" not in cells
    assert max(map(len, lines)) <= 80


def test_what_was_not_measured_or_held_out_is_a_dash(tiny, tmp_path, capsys):
    run = tiny.replace(epochs=1, validation_size=0, schedule="constant", warmup=0.0)
    train(run, tmp_path / "run", throughput=False)
    assert capsys.readouterr().out.splitlines()[-1].split()[3:9] == [
        "-",
        "-",
        "2.0e-3",
        "-",
        "-",
        "-",
    ]


def test_a_resumed_run_goes_on_with_the_next_row(tiny, tmp_path, capsys):
    with pytest.raises(KeyboardInterrupt):
        train(tiny, tmp_path / "run", callbacks=[InterruptAt(4)])
    capsys.readouterr()
    train(tiny, tmp_path / "run", resume=True)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]] == ["2/2"]


def test_on_a_terminal_there_is_a_bar_that_goes_away(tiny, tmp_path, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    train(tiny.replace(epochs=1), tmp_path / "run")
    shown = terminal.getvalue()
    assert "0/3" in shown
    last = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.splitlines()[-1].rsplit("\r")[-1])
    assert last.split()[0] == "1/1"


def test_without_a_progress_bar_nothing_is_printed(tiny, tmp_path, capsys):
    train(tiny.replace(epochs=1), tmp_path / "run", progress_bar=False)
    assert capsys.readouterr().out == ""


def test_numbers_and_times_fit_their_columns():
    numbers = {
        2.30259: "2.302",
        45.678: "45.67",
        123456.7: "123457",
        0.000123: "1.2e-4",
        0.0: "0.000",
    }
    assert {number: _number(number) for number in numbers} == numbers
    times = {0.4: "0:00", 59.6: "1:00", 3599.0: "59:59", 35999.0: "9:59:59", 90000.0: "25 h"}
    assert {seconds: _time(seconds) for seconds in times} == times


CPU = torch.device("cpu")

NUMBERS = ("images_per_second", "tflops_per_second", "flop_utilisation")


def states(folder):
    return torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]


def rows(folder):
    """Logged rows of all starts, in order."""
    found = []
    for version in sorted((folder / "logs").glob("version_*")):
        with (version / "metrics.csv").open(encoding="utf-8") as file:
            found += list(csv.DictReader(file))
    return found


def column(folder, name):
    return [float(row[name]) for row in rows(folder) if row.get(name)]


@pytest.fixture(scope="module")
def run(dropping):
    return Run.load(dropping)


@pytest.fixture(scope="module")
def measured(dropping):
    return dropping


@pytest.fixture(scope="module")
def unmeasured(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unmeasured") / "run"
    train(run, folder, throughput=False, progress_bar=False)
    return folder


def test_measuring_changes_no_bit_of_a_training(measured, unmeasured):
    first, second = states(measured), states(unmeasured)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    for name in ("train_loss", "train_accuracy", "validation_loss", "validation_accuracy"):
        assert column(measured, name) == column(unmeasured, name)


def test_measuring_changes_no_bit_of_a_resumed_training_and_the_numbers_go_on(
    run, measured, unmeasured, tmp_path
):
    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path / "run", callbacks=[InterruptAt(7)])
    train(run, tmp_path / "run", resume=True)
    first, second = states(tmp_path / "run"), states(unmeasured)
    assert all(torch.equal(first[name], second[name]) for name in first)
    kept = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=True)[
        "callbacks"
    ]["Throughput"]
    # The first epoch of each start is warm-up: of the first start that is epoch 1 of 3, of the second epoch 3.
    assert [len(kept[name]) for name in ("images_per_second", "flop_utilisation")] == [1, 1]


def test_the_numbers_of_every_measured_epoch_are_logged_and_their_medians_kept(measured):
    assert WARMUP_STEPS == 3  # which are all steps of the first epoch
    images, tflops, utilisation = (column(measured, name) for name in NUMBERS)
    assert len(images) == len(tflops) == len(utilisation) == 2
    result = json.loads((measured / "result.json").read_text())
    assert result["train_images_per_second"] == pytest.approx(sum(images) / 2, rel=1e-3)
    assert result["flop_utilisation"] == pytest.approx(sum(utilisation) / 2, rel=1e-3)
    assert result["peak_source"].startswith("measured matrix product")
    for image, tflop, share in zip(images, tflops, utilisation, strict=True):
        assert tflop == pytest.approx(image * result["training_flops_per_image"] / 1e12, rel=1e-5)
        assert share == pytest.approx(tflop / result["peak_tflops"], rel=1e-3)


def test_without_measuring_nothing_is_logged_or_kept(unmeasured):
    assert not set(NUMBERS) & set(rows(unmeasured)[0])
    assert "train_images_per_second" not in json.loads((unmeasured / "result.json").read_text())


def test_a_training_that_ends_before_the_warmup_does_has_no_numbers(tiny, tmp_path):
    result = train(tiny.replace(epochs=1), tmp_path / "run")
    assert result["train_images_per_second"] is None
    assert result["flop_utilisation"] is None


def test_every_image_after_the_warmup_is_counted_whatever_parts_a_step_has(
    run, tmp_path, monkeypatch
):
    counted = []
    plain = Throughput.on_train_epoch_end

    def watched(throughput, trainer, module):
        counted.append(throughput._images)
        plain(throughput, trainer, module)

    monkeypatch.setattr(Throughput, "on_train_epoch_end", watched)
    run = run.replace(batch_size=20, epochs=2, train_size=96)  # steps of 20, 20, 20, 20 and 16
    train(run, tmp_path / "run", execution=Execution(accumulate=3))
    assert counted == [36, 96]


def test_operations_are_counted_on_a_copy_of_any_model():
    # A VGG-16's 134 million parameters take seconds; it is made of what AlexNet is made of.
    for kind in MODELS.keys() - {"vgg16"}:
        torch.manual_seed(0)
        model = Run.of(model=kind).make_model(image_size=(32, 32), in_channels=1, num_classes=10)
        before, random_state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
        assert training_flops_per_image(model, torch.zeros(2, 1, 32, 32)) > 0, kind
        assert torch.equal(torch.get_rng_state(), random_state), kind
        assert all(
            torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items()
        ), kind
        assert all(parameter.grad is None for parameter in model.parameters()), kind


def test_operations_of_a_linear_map_are_those_of_its_three_products():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5), torch.nn.Linear(5, 7))
    # Forward and two gradients of 2 · 5 · 7 each; of the first map the gradient of the images is not needed.
    assert (
        training_flops_per_image(model, torch.zeros(2, 3, 2, 2)) == 2 * 12 * 5 * 2 + 2 * 5 * 7 * 3
    )


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of a name, of which nothing can be measured here."""

    def named(name):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
        monkeypatch.setattr(progress, "_measured", lambda *_: Peak(1.0, MEASURED))
        return torch.device("cuda", 0)

    return named


def test_the_peak_of_a_cpu_is_measured_once_and_without_a_draw():
    state = torch.get_rng_state()
    found = peak(CPU, torch.float32)
    assert found.flops > 0
    assert found.source == "measured matrix product, 1024 × 1024, float32, 1 thread"
    assert peak(CPU, torch.float32) is found
    assert torch.equal(torch.get_rng_state(), state)


def test_the_peak_of_a_known_gpu_is_its_makers(gpu):
    found = peak(gpu("NVIDIA A100-SXM4-40GB"), torch.bfloat16)
    assert found == Peak(312e12, "Lightning's table for NVIDIA A100-SXM4-40GB, bfloat16")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("NVIDIA New 9000", id="a GPU that no table has"),
        pytest.param("NVIDIA H100 NVL", id="a GPU whose number in the table is that of two"),
    ],
)
def test_the_peak_of_another_gpu_is_measured(gpu, name, recwarn):
    assert peak(gpu(name), torch.bfloat16).source == MEASURED
    assert not recwarn.list


def test_nothing_is_faster_than_its_peak_which_other_work_may_have_hidden(
    run, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        "teka.training.progress.peak", lambda device, dtype: Peak(1.0, "measured beside other work")
    )
    result = train(run, tmp_path / "run")
    shares = column(tmp_path / "run", "flop_utilisation")
    assert max(shares) <= 1
    assert shares[0] == 1
    assert result["peak_tflops"] == pytest.approx(
        max(column(tmp_path / "run", "tflops_per_second")), rel=1e-3
    )
