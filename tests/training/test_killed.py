"""A run that was killed, moved or damaged goes on to what an uninterrupted one gives, bit for bit."""

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
    """Nothing catches it."""


@pytest.fixture(scope="module")
def stopping(tiny):
    """A run that stops early, after its best epoch. Which epoch that is may depend on the processor."""
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
def whole_and_num_writes(stopping, tmp_path_factory):
    with patch.object(checkpoint, "write_bytes", wraps=checkpoint.write_bytes) as write:
        folder = trained(stopping, tmp_path_factory.mktemp("whole") / "run")
    return folder, write.call_count


@pytest.fixture(scope="module")
def whole(whole_and_num_writes):
    return whole_and_num_writes[0]


def trained(run: Run, folder: Path, *, resume: bool = False) -> Path:
    """The folder of a run that was trained by one thread of a CPU: others add in another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        train(run, folder, resume=resume, execution=CPU, progress_bar=False)
    finally:
        torch.set_num_threads(threads)
    return folder


def assert_same(first: Path, second: Path) -> None:
    """Both checkpoints, the best score and the result are the same, but for the time; and no other file stays."""
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
        stopping = "EarlyStopping{'monitor': 'validation_accuracy', 'mode': 'max'}"
        assert one["callbacks"][stopping] == other["callbacks"][stopping]
        assert one["state_dict"].keys() == other["state_dict"].keys()
        assert all(
            torch.equal(tensor, other["state_dict"][key])
            for key, tensor in one["state_dict"].items()
        )
    one, other = (read_json(folder / "result.json") for folder in (first, second))
    # Only processes of the tests see one core, and a training may finish before it is killed.
    ignored = {"seconds": 0, "train_images_per_second": 0, "hardware": ""}
    assert {**one, **ignored} == {**other, **ignored}


def test_run_stops_early_after_its_best_epoch(stopping, whole):
    best, last = (
        torch.load(whole / "checkpoints" / name, weights_only=True)["epoch"]
        for name in ("best.ckpt", "last.ckpt")
    )
    assert best + stopping.patience == last < stopping.epochs - 1


@pytest.fixture(scope="module")
def killed_after(stopping, whole_and_num_writes):
    """Train the run of these tests until a write of a checkpoint, or until the last write."""

    def train_until(number: int | None, folder: Path) -> Path:
        write, writes = checkpoint.write_bytes, itertools.count(1)

        def write_or_die(*arguments, **options):
            write(*arguments, **options)
            if next(writes) == (number or whole_and_num_writes[1]):
                raise Killed

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(checkpoint, "write_bytes", write_or_die)
            with pytest.raises(Killed):
                trained(stopping, folder)
        assert not (folder / "result.json").exists()
        return folder

    return train_until


# After the first best checkpoint, and within a later epoch; at the end is the case of a damaged checkpoint below.
@pytest.mark.parametrize("number", [1, 4])
def test_run_that_is_killed_and_moved_resumes_to_the_same_checkpoints(
    stopping, whole, tmp_path, killed_after, number
):
    moved = killed_after(number, tmp_path / "killed").rename(tmp_path / "moved")
    assert_same(whole, trained(stopping, moved, resume=True))


def test_finished_run_without_result_is_not_trained_again(stopping, whole, tmp_path):
    folder = Path(shutil.copytree(whole, tmp_path / "run"))
    (folder / "result.json").unlink()
    assert_same(whole, trained(stopping, folder, resume=True))


@pytest.fixture(scope="module")
def killed_at_its_end(killed_after, tmp_path_factory):
    return killed_after(None, tmp_path_factory.mktemp("killed") / "run")


@pytest.mark.parametrize("damage", ["cut off", "one bit", "missing"])
def test_damaged_last_checkpoint_is_replaced_by_the_previous_one(
    stopping, whole, tmp_path, killed_at_its_end, damage
):
    folder = Path(shutil.copytree(killed_at_its_end, tmp_path / "run"))
    last = folder / "checkpoints" / "last.ckpt"
    content = bytearray(last.read_bytes())
    content[middle_of_largest_record(last)] ^= 1
    last.write_bytes(content if damage == "one bit" else content[: len(content) // 2])
    if damage == "missing":
        last.unlink()
    with pytest.warns(UserWarning, match=r"last\.ckpt.* The previous epoch is used"):
        trained(stopping, folder, resume=True)
    assert_same(whole, folder)


def middle_of_largest_record(path: Path) -> int:
    with zipfile.ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda record: record.file_size)
    name, extra = struct.unpack_from("<HH", path.read_bytes(), largest.header_offset + 26)
    return largest.header_offset + 30 + name + extra + largest.file_size // 2


def test_error_names_a_damaged_checkpoint_without_a_previous_one(stopping, whole, tmp_path):
    folder = Path(shutil.copytree(whole, tmp_path / "run"))
    (folder / "result.json").unlink()
    (folder / "checkpoints" / "last.ckpt").write_bytes(b"PK")
    with pytest.raises(
        ValueError, match=r"checkpoint must be an undamaged checkpoint.*got .*last\.ckpt'"
    ):
        trained(stopping, folder, resume=True)


SHARED_MEMORY = Path("/dev/shm")  # another file system, where there is one


def test_run_that_is_killed_at_any_moment_resumes_to_the_same_checkpoints(
    stopping, whole, tmp_path
):
    folder, last = tmp_path / "killed", tmp_path / "killed" / "checkpoints" / "last.ckpt"
    temporary = SHARED_MEMORY if SHARED_MEMORY.is_dir() else tmp_path
    process = start_training(stopping, folder, CPU, {"TMPDIR": str(temporary)}, progress_bar=False)
    while not last.is_file() and process.is_alive():
        time.sleep(0.005)
    time.sleep(random.Random(0).uniform(0, 0.3))
    process.kill()
    process.join()
    # Between two renames the last checkpoint is the previous one, and alone.
    assert last.is_file() or last.with_name(checkpoint.PREVIOUS).is_file()
    assert_same(whole, trained(stopping, folder, resume=True))
