"""Runs that were killed, moved or damaged resume to bitwise the same checkpoints as an uninterrupted run."""

import itertools
import random
import shutil
import struct
import time
import zipfile
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from teka.files import read_json
from teka.training import Execution, Run, checkpoint, train
from tests.training.processes import start_training

CPU = Execution(accelerator="cpu")


class Killed(BaseException):
    """An exception that no handler of ``Exception`` catches."""


@pytest.fixture(scope="module")
def early_stopping_run(tiny):
    """Return a run that stops early. Which epoch is the best may depend on the processor."""
    return tiny.replace(
        epochs=8,
        patience=2,
        learning_rate=0.05,
        dropout=0.1,
        schedule="constant",
        kernel="squared_relu",
        stem="patch",
    )


@pytest.fixture(scope="module")
def reference_folder_and_num_writes(early_stopping_run, tmp_path_factory):
    with patch.object(checkpoint, "write_bytes", wraps=checkpoint.write_bytes) as write:
        folder = train_on_cpu(early_stopping_run, tmp_path_factory.mktemp("whole") / "run")
    return folder, write.call_count


@pytest.fixture(scope="module")
def reference_folder(reference_folder_and_num_writes):
    return reference_folder_and_num_writes[0]


def train_on_cpu(run: Run, folder: Path, *, resume: bool = False) -> Path:
    """Train a run on one CPU thread, because more threads add in another order, and return its folder."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        train(run, folder, resume=resume, execution=CPU, progress_bar=False)
    finally:
        torch.set_num_threads(threads)
    return folder


def assert_same(first: Path, second: Path) -> None:
    """Assert that both runs have equal checkpoints, scores and results except for times, and no other files."""
    for folder in (first, second):
        assert {path.name for path in (folder / "checkpoints").iterdir()} == {
            "best.ckpt",
            "last.ckpt",
        }
    for name in ("best.ckpt", "last.ckpt"):
        one, other = (
            torch.load(folder / "checkpoints" / name, weights_only=True)
            for folder in (first, second)
        )
        assert one["epoch"] == other["epoch"]
        assert one["callbacks"]["Checkpoints"] == other["callbacks"]["Checkpoints"]
        early_stopping = "EarlyStopping{'monitor': 'validation_accuracy', 'mode': 'max'}"
        assert one["callbacks"][early_stopping] == other["callbacks"][early_stopping]
        assert one["state_dict"].keys() == other["state_dict"].keys()
        assert all(
            torch.equal(tensor, other["state_dict"][key])
            for key, tensor in one["state_dict"].items()
        )
    one, other = (read_json(folder / "result.json") for folder in (first, second))
    # Only processes of the tests see one core, and a training may finish before it is killed.
    ignored = {"seconds": 0, "train_images_per_second": 0, "hardware": ""}
    assert {**one, **ignored} == {**other, **ignored}


def test_run_stops_early_after_its_best_epoch(early_stopping_run, reference_folder):
    best, last = (
        torch.load(reference_folder / "checkpoints" / name, weights_only=True)["epoch"]
        for name in ("best.ckpt", "last.ckpt")
    )
    assert best + early_stopping_run.patience == last < early_stopping_run.epochs - 1


@pytest.fixture(scope="module")
def train_until_killed(early_stopping_run, reference_folder_and_num_writes):
    """Return a function that trains until a checkpoint is written the n-th (None: the last) time."""

    def train_until(number: int | None, folder: Path) -> Path:
        write, writes = checkpoint.write_bytes, itertools.count(1)

        def write_or_die(*arguments, **options):
            write(*arguments, **options)
            if next(writes) == (number or reference_folder_and_num_writes[1]):
                raise Killed

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(checkpoint, "write_bytes", write_or_die)
            with pytest.raises(Killed):
                train_on_cpu(early_stopping_run, folder)
        assert not (folder / "result.json").exists()
        return folder

    return train_until


# After the first best checkpoint and within a later epoch. The tests of damaged checkpoints are killed at the end.
@pytest.mark.parametrize("number", [1, 4])
def test_run_that_is_killed_and_moved_resumes_to_the_same_checkpoints(
    early_stopping_run, reference_folder, tmp_path, train_until_killed, number
):
    moved = train_until_killed(number, tmp_path / "killed").rename(tmp_path / "moved")
    assert_same(reference_folder, train_on_cpu(early_stopping_run, moved, resume=True))


def test_finished_run_without_result_is_not_trained_again(
    early_stopping_run, reference_folder, tmp_path
):
    folder = Path(shutil.copytree(reference_folder, tmp_path / "run"))
    (folder / "result.json").unlink()
    assert_same(reference_folder, train_on_cpu(early_stopping_run, folder, resume=True))


@pytest.fixture(scope="module")
def folder_killed_after_the_last_write(train_until_killed, tmp_path_factory):
    return train_until_killed(None, tmp_path_factory.mktemp("killed") / "run")


@pytest.mark.parametrize("damage", ["truncated", "one bit", "missing"])
def test_damaged_last_checkpoint_is_replaced_by_the_previous_one(
    early_stopping_run, reference_folder, tmp_path, folder_killed_after_the_last_write, damage
):
    folder = Path(shutil.copytree(folder_killed_after_the_last_write, tmp_path / "run"))
    last = folder / "checkpoints" / "last.ckpt"
    content = bytearray(last.read_bytes())
    content[middle_of_the_largest_record(last)] ^= 1
    last.write_bytes(content if damage == "one bit" else content[: len(content) // 2])
    if damage == "missing":
        last.unlink()
    with pytest.warns(UserWarning, match=r"last\.ckpt.* The previous epoch is used"):
        train_on_cpu(early_stopping_run, folder, resume=True)
    assert_same(reference_folder, folder)


def middle_of_the_largest_record(path: Path) -> int:
    with zipfile.ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda record: record.file_size)
    name, extra = struct.unpack_from("<HH", path.read_bytes(), largest.header_offset + 26)
    return largest.header_offset + 30 + name + extra + largest.file_size // 2


def test_error_names_a_damaged_checkpoint_without_a_previous_one(
    early_stopping_run, reference_folder, tmp_path
):
    folder = Path(shutil.copytree(reference_folder, tmp_path / "run"))
    (folder / "result.json").unlink()
    (folder / "checkpoints" / "last.ckpt").write_bytes(b"PK")
    with pytest.raises(
        ValueError, match=r"checkpoint must be an undamaged checkpoint.*got .*last\.ckpt'"
    ):
        train_on_cpu(early_stopping_run, folder, resume=True)


SHARED_MEMORY = Path("/dev/shm")  # another file system, if there is one


def test_run_that_is_killed_at_any_moment_resumes_to_the_same_checkpoints(
    early_stopping_run, reference_folder, tmp_path
):
    folder, last = tmp_path / "killed", tmp_path / "killed" / "checkpoints" / "last.ckpt"
    temporary = SHARED_MEMORY if SHARED_MEMORY.is_dir() else tmp_path
    process = start_training(
        early_stopping_run, folder, CPU, {"TMPDIR": str(temporary)}, progress_bar=False
    )
    while not last.is_file() and process.is_alive():
        time.sleep(0.005)
    time.sleep(random.Random(0).uniform(0, 0.3))
    process.kill()
    process.join()
    # Between the two renames, only the previous checkpoint exists.
    assert last.is_file() or last.with_name(checkpoint.PREVIOUS).is_file()
    assert_same(reference_folder, train_on_cpu(early_stopping_run, folder, resume=True))
