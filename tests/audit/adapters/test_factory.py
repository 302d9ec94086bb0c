import sys

import pytest
import torch
from torch import nn

from teka.audit.adapters.factory import load_factory

SOURCE = """
import torch
from torch import nn
from beside import WIDTH
from teka.audit.adapters import Preprocessing, Subject

def network():
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(WIDTH)).train()

def function():
    return lambda images: images.sum(dim=(2, 3))

def subject():
    return Subject("mine", "factory", lambda images: images, transform=Preprocessing(1, (3, 3)))

def number():
    return 7

def fails():
    raise KeyError("weights")
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "beside.py").write_text("WIDTH = 4\n")
    (tmp_path / "mine.py").write_text(SOURCE)
    yield tmp_path / "mine.py"
    sys.modules.pop("beside", None)


def test_a_module_is_taken_in_the_mode_it_comes_in(file, tmp_path):
    (tmp_path / "mine.py").write_text(SOURCE.replace("nn.LazyLinear(WIDTH)", "nn.Linear(6, WIDTH)"))
    subject = load_factory(f"{file}:network", input_size=(2, 3))
    assert subject.name == "mine:network"
    assert isinstance(subject.module, nn.Sequential)
    assert subject.module.training
    assert (subject.input_size, subject.in_channels) == ((2, 3), None)
    answer = subject.function(torch.rand(5, 1, 2, 3))
    assert isinstance(answer, torch.Tensor)
    assert tuple(answer.shape) == (5, 4)


def test_a_callable_and_a_subject_will_do(file):
    assert load_factory(f"{file}:function").module is None
    subject = load_factory(f"{file}:subject")
    assert (subject.name, subject.transform.resize) == ("mine", (3, 3))


def test_the_import_path_is_left_as_it_was(file):
    before = list(sys.path)
    load_factory(f"{file}:function")
    assert sys.path == before


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("number", "not int"),
        ("fails", "raised KeyError"),
        ("netwrok", "it has .*network"),
        ("", "path/module.py:function"),
    ],
)
def test_what_makes_no_model_is_an_error(file, name, said):
    with pytest.raises(ValueError, match=said):
        load_factory(f"{file}:{name}")


def test_a_file_that_does_not_run_or_is_not_there_is_an_error(tmp_path):
    (tmp_path / "bad.py").write_text("import no_such_package_as_this")
    with pytest.raises(ValueError, match="raised ModuleNotFoundError"):
        load_factory(f"{tmp_path / 'bad.py'}:model")
    with pytest.raises(ValueError, match="an existing file"):
        load_factory(f"{tmp_path / 'absent.py'}:model")
