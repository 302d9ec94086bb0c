"""Where the files of a data set lie: the first folder that has them all."""

import shlex
from collections.abc import Sequence
from pathlib import Path

DATA_DIR = "data"


def find_files(
    name: str, folders: Sequence[Path], files: Sequence[str], *, remedy: str, endings: Sequence[str] = ("",)
) -> dict[str, Path]:
    """The path of each file in the first folder that has every one.

    Args:
        name: Name of the data set, for the message.
        folders: Folders to look in, in this order.
        files: File names.
        endings: What may follow a file's name; the last that is there is taken.
        remedy: What to do when the files are missing, as an instruction to the user.

    Raises:
        ValueError: No folder has all files; the message names every folder, what it lacks and what to do.
    """
    looked = []
    for folder in folders:
        paths = [(file, folder / f"{file}{ending}") for file in files for ending in endings]
        found = {file: path for file, path in paths if path.is_file()}
        absent = [file for file in files if file not in found]
        if not absent:
            return found
        looked.append(f"{folder} (no {', no '.join(absent)})")
    places = "; looked in " + " and ".join(looked) if looked else ": no data_dir was given"
    raise ValueError(f"the files of {name} were not found{places}. {remedy}")


def download_advice(name: str, data_dir: str | Path | None) -> str:
    """How to get the files, as an instruction to the user.

    Args:
        name: Name of the data set.
        data_dir: Folder that they were looked for in, if any.
    """
    folder = shlex.quote(str(DATA_DIR if data_dir is None else data_dir))
    told = f" and give {folder} as data_dir" if data_dir is None else ""
    return f"Run `teka download {name} --data-dir {folder}`{told}."
