import copy
from multiprocessing import popen_fork

import pytest
import yaml
from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.backend.process import LokyProcess

from reproduction.study import read_study, run_study

# Two models of a few hundred parameters on 64 images of digits, which train within a second.
TINY = {
    "name": "tiny",
    "base": {
        "data": "digits",
        "image_size": 8,
        "train_size": 64,
        "validation_size": 20,
        "stem": "convolution",
        "periodic": True,
        "dim": 8,
        "heads": 2,
        "depth": 1,
        "batch_size": 16,
        "epochs": 1,
    },
    "factors": {
        "kernel": {"softmax": {"kernel": "softmax"}, "squared relu": {"kernel": "squared_relu"}},
        "position": {"none": {"position": "none"}, "absolute": {"position": "absolute"}},
    },
    "leave_out": [{"kernel": ["softmax"], "position": ["absolute"]}],
    "seeds": [0, 3],
    "measure": {
        "images": 50,
        "shifted_images": 20,
        "shifts": [[0, 3], [-2, 1]],
        "curve_points": 3,
        "save": "float16",
    },
    "reference": {"kernel": "softmax"},
}


@pytest.fixture(scope="package", autouse=True)
def forks():
    """Start workers as forks of this process, which has imported all modules that they need."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(LokyProcess, "_Popen", staticmethod(popen_fork.Popen))
        yield
        get_reusable_executor().shutdown()


@pytest.fixture(scope="session")
def tiny_study(tmp_path_factory):
    """Return the path of a small study."""
    path = tmp_path_factory.mktemp("specification") / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY, sort_keys=False), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def finished_folder(tiny_study, tmp_path_factory):
    """Return the folder of the small study, trained by two processes without interruption."""
    folder = tmp_path_factory.mktemp("finished")
    return run_study(read_study(tiny_study), folder, processes=2, command="study tiny.yaml")


@pytest.fixture
def tiny_fields():
    """Return the keys of the small study."""
    return copy.deepcopy(TINY)


@pytest.fixture
def write_study(tmp_path):
    """Write the YAML file of a study and return its path."""

    def write_file(fields):
        path = tmp_path / "tiny.yaml"
        path.write_text(yaml.safe_dump(fields, sort_keys=False), encoding="utf-8")
        return path

    return write_file
