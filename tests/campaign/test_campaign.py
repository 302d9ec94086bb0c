"""A short run of every part of the campaign except kills, which have their own tests."""

import importlib
from pathlib import Path

import pytest

from reproduction.__main__ import REPRODUCTION_COMMANDS
from teka.cli.app import COMMANDS
from tests.campaign.calls import entries, fuzz_public_calls
from tests.campaign.commands import AUDIT, BASES, OPTIONS, fuzz_commands
from tests.campaign.damages import damage_files
from tests.campaign.disks import fill_disks
from tests.campaign.fixtures import write_fixtures
from tests.campaign.outcome import run_command

pytestmark = pytest.mark.usefixtures("unchecked_annotations_in_module")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path_factory.getbasetemp())
        return write_fixtures(tmp_path_factory.mktemp("campaign") / "files")


@pytest.fixture(autouse=True)
def _work_in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


@pytest.mark.filterwarnings("ignore")
def test_fuzzed_command_lines_succeed_or_are_errors_of_one_line():
    tally = fuzz_commands(40, seed=1)
    assert not tally.problems
    assert tally.counts["refused"] > 12


@pytest.mark.filterwarnings("ignore")
def test_damaged_files_are_errors_of_one_line_or_harmless():
    tally = damage_files(7, seed=1)
    assert not tally.problems
    assert tally.counts["refused"] > 4


@pytest.mark.filterwarnings("ignore")
def test_full_disk_is_an_error_and_the_command_can_be_repeated():
    tally = fill_disks(0.35, ("evaluate", "export", "audit"))  # The tests of kills cover training.
    assert not tally.problems
    assert tally.counts["refused, and whole again"] > 5


def test_fuzzed_calls_succeed_or_are_errors_that_name_an_argument():
    tally = fuzz_public_calls(100, seed=1, packages=("audit", "convert"))
    assert not tally.problems
    assert tally.counts["refused"] > 50


def test_valid_arguments_of_every_public_call_give_a_result():
    known = entries()
    for name, entry in known.items():
        if name != "data.download":  # It needs a network.
            entry.call(**entry.good())
    modules = {
        name: importlib.import_module(f"teka.{name}")
        for name in ("audit", "convert", "data", "testing")
    }
    public = {f"{package}.{name}" for package, module in modules.items() for name in module.__all__}
    assert public - known.keys() == {
        "audit.ModelError",
        "testing.EquivarianceError",
        "testing.RelativeErrors",
    }


def test_campaign_covers_every_command():
    assert set(BASES) == set(OPTIONS) == set(COMMANDS | REPRODUCTION_COMMANDS)


@pytest.mark.parametrize("function", ["leaves", "leaves_when_called"])
def test_model_that_exits_the_program_does_not_pass_the_threshold(function: str):
    command = [
        "audit",
        f"model.py:{function}",
        "--data",
        "data.npz",
        "--max-shift",
        "1",
        "--fail-under",
        "0",
    ]
    outcome = run_command(command)
    assert outcome.code == 2
    assert "SystemExit" in outcome.error


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("train --dim 40000 --out new", "fits into memory"),
        ("train --image-size 7000 --out new", "small enough for the memory"),
        (
            "train --depth 2000000000 --out new",
            "depth must be a whole number up to 10000, got 2000000000",
        ),
        ("audit digits --data digits --max-shift 1e9", "got 1000000000"),
        ("audit digits --data digits --device meta", "a device that computes"),
        (
            f"audit model.py:make {' '.join(AUDIT)} --html /dev/full",
            "No space left on device: /dev/full",
        ),
        (
            "audit digits --data digits --html a --json a",
            "json must be another file than that of --html, got 'a'",
        ),
        ("demo --seeds=--", "seeds"),
        ("train --config=--", "a YAML file"),
        ("train --out=", "--out must be a value, got ''"),
        ("train --out /proc/teka", "out must be a writable folder"),
    ],
)
def test_impossible_command_is_an_error_of_one_line(command: str, message: str):
    outcome = run_command(command.split())
    assert outcome.is_sound
    assert outcome.code == 2
    assert message in outcome.error
