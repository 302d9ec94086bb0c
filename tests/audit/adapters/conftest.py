import pytest

from tests.audit.adapters.tiny_vit import write_vit


@pytest.fixture(scope="session")
def vit_folder(tmp_path_factory):
    """Return the folder of a random gray ViT for 12 × 12 pixels with five classes and an image processor."""
    folder = tmp_path_factory.mktemp("vit")
    write_vit(folder)
    return folder
