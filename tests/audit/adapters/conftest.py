import pytest

from tests.audit.adapters.tiny_vit import write_vit


@pytest.fixture(scope="session")
def vit_folder(tmp_path_factory):
    """An untrained grey ViT of 12 × 12 pixels in patches of 4, five named classes, and its image processor."""
    folder = tmp_path_factory.mktemp("vit")
    write_vit(folder)
    return folder
