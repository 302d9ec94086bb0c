import pytest

from tests.audit.adapters.tiny_vit import write_vit


@pytest.fixture(scope="session")
def vit_folder(tmp_path_factory):
    """Return a folder with a random ViT for 12 × 12 gray pixels, and its image processor."""
    folder = tmp_path_factory.mktemp("vit")
    write_vit(folder)
    return folder
