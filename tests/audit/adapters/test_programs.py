"""Saved programs give the same outputs as the models from which they were made."""

import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

from teka.audit import AuditSettings, audit
from teka.audit.adapters import LoadOptions, load

IMAGES = torch.rand(5, 3, 8, 6, generator=torch.Generator().manual_seed(0))
HALF = LoadOptions(mean=(0.5,), deviation=(0.5,), trust=True)


def make_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(24, 7)
    ).eval()


def test_torchscript_file_returns_the_output_of_its_model(tmp_path: Path):
    model = make_network()
    torch.jit.save(torch.jit.script(model), tmp_path / "net.pt")
    subject = load(str(tmp_path / "net.pt"), HALF)
    torch.testing.assert_close(subject.function(IMAGES), model(2 * IMAGES - 1))
    assert subject.kind == "torchscript"
    report = audit(
        subject.function, IMAGES.repeat(4, 1, 1, 1), settings=AuditSettings(shifts=((0, 0), (0, 1)))
    )
    assert report.failures == ()
    assert report.layers is not None


@pytest.mark.parametrize("batch_size", [2, None])
def test_exported_program_returns_the_output_of_its_model(tmp_path: Path, batch_size: int | None):
    model, dynamic = make_network(), {0: torch.export.Dim("batch")} if batch_size is None else None
    program = torch.export.export(
        model, (IMAGES[:2],), dynamic_shapes=None if dynamic is None else (dynamic,)
    )
    torch.export.save(program, tmp_path / "net.pt2")
    subject = load(str(tmp_path / "net.pt2"), trust=True)
    torch.testing.assert_close(subject.function(IMAGES), model(IMAGES))
    assert (subject.kind, subject.input_size, subject.in_channels) == ("torch.export", (8, 6), 3)
    assert subject.module is not None
    assert not any(part.training for part in subject.module.modules())


def test_program_with_a_maximal_batch_size_gets_smaller_batches(tmp_path: Path):
    model, dynamic = make_network(), {0: torch.export.Dim("batch", max=3)}
    program = torch.export.export(model, (IMAGES[:2],), dynamic_shapes=(dynamic,))
    torch.export.save(program, tmp_path / "net.pt2")
    function = load(str(tmp_path / "net.pt2"), trust=True).function
    images = IMAGES.repeat(2, 1, 1, 1)[:7]
    assert len(images) == 7
    torch.testing.assert_close(function(images), model(images))


def test_file_without_an_image_program_is_an_error(tmp_path: Path):
    torch.save(make_network().state_dict(), tmp_path / "weights.pt")
    with pytest.raises(
        ValueError, match=r"A file of weights does not contain the architecture. Name a model"
    ):
        load(str(tmp_path / "weights.pt"))
    (tmp_path / "bad.pt2").write_bytes(b"PK")
    with pytest.raises(
        ValueError, match=r"model must be a program of torch.export.*got '.*bad.pt2'"
    ):
        load(str(tmp_path / "bad.pt2"), trust=True)
    torch.export.save(
        torch.export.export(nn.Linear(3, 2), (torch.zeros(4, 3),)), tmp_path / "flat.pt2"
    )
    with pytest.raises(
        ValueError, match=r"the inputs of .*flat.pt2 must be one of images.*got \[\(4, 3\)\]"
    ):
        load(str(tmp_path / "flat.pt2"), trust=True)
    with pytest.raises(ValueError, match=r"weights must be None for a.*got 'random'"):
        load(str(tmp_path / "flat.pt2"), LoadOptions(weights="random"))


@pytest.mark.parametrize("name", ["net.pt2", "net.pt", "net.pth", "net.zip", "net"])
def test_program_without_trust_is_an_error_before_it_is_read(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
):
    model = make_network()
    if name.endswith(".pt2"):
        torch.export.save(torch.export.export(model, (IMAGES[:2],)), tmp_path / name)
    else:
        torch.jit.save(torch.jit.script(model), tmp_path / name)
    monkeypatch.setattr(
        torch.jit, "load", lambda *_, **__: pytest.fail("torch.jit.load was called")
    )
    monkeypatch.setattr(
        torch.export, "load", lambda *_, **__: pytest.fail("torch.export.load was called")
    )
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("torch.load was called"))
    for load_options in (LoadOptions(), LoadOptions(input_size=8, mean=(0.5,), deviation=(0.5,))):
        with pytest.raises(
            ValueError,
            match=r"^trust must be True to load '.*', got False\. .* with all your rights",
        ):
            load(str(tmp_path / name), load_options)


def test_program_passed_as_weights_is_not_run(tmp_path: Path):
    torch.jit.save(torch.jit.script(make_network()), tmp_path / "net.pt")
    (tmp_path / "model.py").write_text(
        "import torch\n\n\ndef make():\n    return torch.nn.Linear(2, 2)\n"
    )
    with pytest.raises(
        ValueError, match="Cannot use ``weights_only=True`` with TorchScript archives"
    ):
        load(f"{tmp_path}/model.py:make", LoadOptions(weights=str(tmp_path / "net.pt"), trust=True))


def test_damaged_program_is_an_error_without_a_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    (tmp_path / "bad.pt2").write_bytes(b"junk")
    with zipfile.ZipFile(tmp_path / "bad.pt", "w") as archive:
        archive.writestr("bad/code/model.py", "junk")
    for name in ("bad.pt2", "bad.pt"):
        with pytest.raises(ValueError, match=rf"model must be a program of.*got '.*{name}'"):
            load(str(tmp_path / name), trust=True)
    assert capfd.readouterr() == ("", "")
