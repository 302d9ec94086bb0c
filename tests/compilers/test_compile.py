import shutil
import sysconfig
from pathlib import Path

import pytest

from teka.functional import KERNELS
from tests.contracts.cases import EXHAUSTIVE, RELATIVE_NAMES
from tests.forks import run

# Number of processes that share the layers.
PARTS = 6 if EXHAUSTIVE else 3
# The default backend of torch.compile needs a compiler and the headers of Python.
HAS_COMPILER = (
    shutil.which("g++") is not None and Path(sysconfig.get_path("include"), "Python.h").is_file()
)


@pytest.mark.parametrize("part", range(PARTS))
def test_compiled_layers_are_one_graph_with_equal_outputs(part: int):
    found = run("tests.compilers.compile_everything", "aot_eager", part, PARTS)
    assert found["wrong"] == {}
    assert found["count"] > 8


@pytest.mark.parametrize("backend", ["inductor"] if HAS_COMPILER else ["aot_eager"])
def test_default_compiler_gives_equal_outputs(backend: str):
    assert run("tests.compilers.compile_everything", backend)["wrong"] == {}


@pytest.mark.parametrize("backend", ["inductor"] if HAS_COMPILER else ["aot_eager"])
def test_gradients_of_a_compiled_model_in_bfloat16_are_finite(backend: str):
    assert run("tests.compilers.train_compiled", backend) == []


def test_exported_kernels_and_relative_kernels_give_equal_outputs():
    found = run("tests.compilers.export_everything", "program")
    assert found["wrong"] == {}
    assert found["kernels"] == sorted(KERNELS)
    assert found["relatives"] == sorted(map(str, RELATIVE_NAMES))


def test_exported_programs_accept_any_length_and_batch_size():
    found = run("tests.compilers.export_everything", "dynamic sizes")
    assert found["wrong"] == {}
    assert found["count"] == 9


def test_onnx_graphs_give_equal_outputs_and_linear_layers_stay_linear():
    found = run("tests.compilers.export_everything", "onnx")
    assert found["wrong"] == {}
    assert found["count"] == 8
