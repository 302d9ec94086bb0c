import sys

import pytest

from teka.cli import main
from teka.training import Run, train

TINY = Run.of(image_size=14, train_size=64, validation_size=32, dim=8, depth=2, heads=2, epochs=1, batch_size=32)


@pytest.fixture(scope="session")
def trained_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "run"
    train(TINY, folder)
    return folder


@pytest.fixture
def fails(capsys):
    """Run a command that must fail; returns its one line of error."""

    def run(*arguments: str) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            sys.exit(main([str(argument) for argument in arguments]))
        assert stopped.value.code == 2
        error = capsys.readouterr().err
        assert error.endswith("\n")
        assert error.count("\n") == 1, error
        return error

    return run
