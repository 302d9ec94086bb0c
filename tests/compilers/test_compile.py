import shutil
import sysconfig
from pathlib import Path

import pytest

from teka.functional import KERNELS
from tests.contracts.cases import EXHAUSTIVE, RELATIVE_NAMES
from tests.forks import run

# Processes among which the layers to compile are divided.
PARTS = 6 if EXHAUSTIVE else 3
# What torch.compile's default backend needs, and not every machine has: a compiler and Python's headers.
HAS_COMPILER = (
    shutil.which("g++") is not None and Path(sysconfig.get_path("include"), "Python.h").is_file()
)


@pytest.mark.parametrize("part", range(PARTS))
def test_layers_compile_as_one_graph_and_compute_the_same(part: int):
    found = run("tests.compilers.compile_everything", "aot_eager", part, PARTS)
    assert found["wrong"] == {}
    assert found["count"] > 8


@pytest.mark.parametrize("backend", ["inductor"] if HAS_COMPILER else ["aot_eager"])
def test_the_default_compiler_computes_the_same(backend: str):
    assert run("tests.compilers.compile_everything", backend)["wrong"] == {}


@pytest.mark.parametrize("backend", ["inductor"] if HAS_COMPILER else ["aot_eager"])
def test_gradients_of_a_compiled_model_in_bfloat16_are_finite(backend: str):
    assert run("tests.compilers.train_compiled", backend) == []


def test_every_kernel_and_every_relative_kernel_exports_and_computes_the_same():
    found = run("tests.compilers.export_everything", "program")
    assert found["wrong"] == {}
    assert found["kernels"] == sorted(KERNELS)
    assert found["relatives"] == sorted(map(str, RELATIVE_NAMES))


def test_programs_take_any_length_and_any_batch():
    found = run("tests.compilers.export_everything", "dynamic sizes")
    assert found["wrong"] == {}
    assert found["count"] == 9


def test_linear_layers_are_linear_in_onnx_and_these_and_a_mended_model_compute_the_same():
    found = run("tests.compilers.export_everything", "onnx")
    assert found["wrong"] == {}
    assert found["count"] == 8
