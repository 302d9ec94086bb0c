from pathlib import Path

import torch

from teka.integrations.hub import HubModel


def test_saved_model_is_loaded_and_its_card_has_the_accuracy(tmp_path: Path):
    model = HubModel.from_teka("digits")
    for _ in range(2):  # into a new folder, and over what is there
        model.save_pretrained(tmp_path / "model")
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]
    loaded = HubModel.from_pretrained(tmp_path / "model")
    assert not loaded.training
    images = torch.rand(2, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(loaded(images), model(images))
    assert loaded.model_config == model.model_config
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    accuracy = model.model_config.facts["evaluation"]["accuracy"]  # pyright: ignore[reportIndexIssue]
    assert f'"accuracy": {accuracy},' in card
    assert card.startswith("---\nlibrary_name: teka\n")
