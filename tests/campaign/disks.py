"""Commands with a full disk at each of their writes, and again with free space."""

import errno
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from teka import files
from tests.campaign.commands import AUDIT, SMALL
from tests.campaign.outcome import Tally, run_command

COMMANDS = {
    "train": (["train", *SMALL, "--epochs", "2", "--out", "new"], ["train", "--resume", "new"]),
    "evaluate": (["evaluate", "run"], ["evaluate", "run"]),
    "shift": (
        ["shift", "run", "--mode", "canvas", "--max-shift", "1", "--out", "new"],
        ["shift", "run", "--mode", "canvas", "--max-shift", "1", "--out", "new"],
    ),
    "export": (["export", "run", "--out", "new"], ["export", "run", "--out", "new"]),
    "audit": (
        [
            "audit",
            "model.py:make",
            *AUDIT,
            "--markdown",
            "new/table.md",
            "--json",
            "new/report.json",
            "--resume",
            "new/s",
        ],
    )
    * 2,
    "page": (["audit", "model.py:make", *AUDIT, "--html", "new/page.html"],) * 2,
    "study": (["study", "study.yaml", "--only", "kernel=relu", "--out", "new"],) * 2,
}


@contextmanager
def simulate_full_disk(write: int, share: float) -> Iterator[Callable[[], bool]]:
    """Let one file of teka run out of space. The context returns a function that tells if it was written.

    Args:
        write: Number of the file in the order of writing, from 1.
        share: Share of its bytes that fits on the disk.
    """
    count, create = 0, files._create_temporary_file

    def create_full(path: Path):
        nonlocal count
        count += 1
        temporary, file = create(path)
        if count != write:
            return temporary, file

        class FullFile:
            def write(self, content: bytes) -> None:
                os.write(file.fileno(), bytes(content)[: int(share * len(content))])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            def __enter__(self):
                return self

            def __exit__(self, *_: object) -> None:
                file.close()

        return temporary, FullFile()

    with mock.patch.object(files, "_create_temporary_file", create_full):
        yield lambda: count >= write


def fill_disks(share: float, names: Collection[str] = tuple(COMMANDS)) -> Tally:
    """Let each command run out of space at each of its writes, and repeat it with free space.

    Args:
        share: Share of the bytes of the failed file that fits on the disk.
        names: The commands.
    """
    tally = Tally("disk full at every write")
    for name in names:
        command, again = COMMANDS[name]
        write, reached = 1, True
        while reached:
            shutil.rmtree("new", ignore_errors=True)
            before = _file_contents(Path("run"))
            with simulate_full_disk(write, share) as was_reached:
                outcome = run_command(command)
                reached = was_reached()
            what = f"{name}, write {write}"
            if not reached:
                tally.add("whole", None if outcome.code == 0 else f"{what}: {outcome.error}")
                break
            if outcome.code != 2 or not outcome.is_sound or "No space left" not in outcome.error:
                tally.add("unclear", f"{what}: {outcome}")
            elif list(Path.cwd().rglob("*.part")):
                tally.add("left a temporary file", what)
            elif any(
                _file_contents(Path("run")).get(path) != content for path, content in before.items()
            ):
                tally.add("lost", f"{what}: a file of the run changed")
            else:
                repeated = run_command(
                    again if Path("new/run.json").is_file() or name != "train" else command
                )
                tally.add(
                    "refused, and whole again",
                    None if repeated.code == 0 else f"{what}: {repeated.error}",
                )
            write += 1
    shutil.rmtree("new", ignore_errors=True)
    return tally


def _file_contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
