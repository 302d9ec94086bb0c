import io
import tarfile
from pathlib import Path

import pytest

from teka.data.archive import take_files


@pytest.fixture
def archive(tmp_path: Path, to_tar) -> Path:
    path = tmp_path / "archive.tar.gz"
    members = {"folder/one": b"11111", "folder/two": b"22222", "folder/other": b"3", "../outside": b"44444"}
    path.write_bytes(to_tar(members))
    return path


def test_the_named_members_go_to_their_places_and_nothing_else_anywhere(archive: Path, tmp_path: Path):
    target = tmp_path / "deep" / "target"
    target.mkdir(parents=True)
    take_files(archive, {"folder/one": target / "a", "folder/two": target / "b"}, num_bytes=5)
    assert (target / "a").read_bytes() == b"11111"
    assert (target / "b").read_bytes() == b"22222"
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert found == ["archive.tar.gz", "deep/target/a", "deep/target/b"]


def test_a_member_that_is_missing_is_an_error_that_names_it(archive: Path, tmp_path: Path):
    with pytest.raises(ValueError, match="lacks folder/three"):
        take_files(archive, {"folder/one": tmp_path / "a", "folder/three": tmp_path / "b"}, num_bytes=5)


def test_a_member_of_another_size_is_an_error_and_is_not_placed(archive: Path, tmp_path: Path):
    with pytest.raises(ValueError, match="folder/other is no plain file of 5 bytes; it has 1"):
        take_files(archive, {"folder/other": tmp_path / "a"}, num_bytes=5)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE], ids=["symlink", "link", "folder"])
def test_a_link_or_a_folder_of_the_name_is_an_error_and_is_not_followed(tmp_path: Path, kind: bytes):
    (tmp_path / "secret").write_bytes(b"55555")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        member = tarfile.TarInfo("folder/one")
        member.type, member.linkname = kind, str(tmp_path / "secret")
        tar.addfile(member)
    path = tmp_path / "archive.tar.gz"
    path.write_bytes(packed.getvalue())
    with pytest.raises(ValueError, match="folder/one is no plain file"):
        take_files(path, {"folder/one": tmp_path / "a"}, num_bytes=5)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.6])
def test_a_damaged_archive_is_an_error_that_names_it(archive: Path, tmp_path: Path, kept: float):
    content = archive.read_bytes()
    archive.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(ValueError, match=r"archive\.tar\.gz"):
        take_files(archive, {"folder/one": tmp_path / "a", "folder/two": tmp_path / "b"}, num_bytes=5)
