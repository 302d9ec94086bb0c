import importlib

import pytest
import torch

from teka.training.peak import MEASURED, Peak, peak

peak_module = importlib.import_module("teka.training.peak")
CPU = torch.device("cpu")


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of a name, of which nothing can be measured here."""

    def named(name):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
        monkeypatch.setattr(peak_module, "_measured", lambda *_: Peak(1.0, MEASURED))
        return torch.device("cuda", 0)

    return named


def test_the_peak_of_a_cpu_is_measured_once_and_without_a_draw():
    state = torch.get_rng_state()
    found = peak(CPU, torch.float32)
    assert found.flops > 0
    assert found.source == "measured matrix product, 1024 × 1024, float32, 1 thread"
    assert peak(CPU, torch.float32) is found
    assert torch.equal(torch.get_rng_state(), state)


def test_the_peak_of_a_known_gpu_is_its_makers(gpu):
    found = peak(gpu("NVIDIA A100-SXM4-40GB"), torch.bfloat16)
    assert found == Peak(312e12, "Lightning's table for NVIDIA A100-SXM4-40GB, bfloat16")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("NVIDIA New 9000", id="a GPU that no table has"),
        pytest.param("NVIDIA H100 NVL", id="a GPU whose number in the table is that of two"),
    ],
)
def test_the_peak_of_another_gpu_is_measured(gpu, name, recwarn):
    assert peak(gpu(name), torch.bfloat16).source == MEASURED
    assert not recwarn.list
