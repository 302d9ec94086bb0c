"""Saving and loading of models on the Hugging Face Hub."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from teka.codec import encode
from teka.errors import require
from teka.memory import count_parameters
from teka.models import ModelConfig, load, read_config, save
from teka.models.model_file import CONFIG_FILE, WEIGHTS_FILE

require("huggingface_hub", "teka.integrations.hub needs", "teka[hub]")

from huggingface_hub import ModelCard, ModelCardData, PyTorchModelHubMixin, snapshot_download  # noqa: E402

CARD = """# {model}, {num_classes} classes, images of {sides}

A model of teka with {num_parameters:,} parameters.

```python
from teka.integrations.hub import HubModel

model = HubModel.from_pretrained("{repository}")
logits = model(images)  # images of shape (B, {channels}, {sides}), intensities in [0, 1]
```

Classes: {class_names}

## Facts

```json
{facts}
```
"""


class HubModel(nn.Module, PyTorchModelHubMixin):
    """Image classifier that can be saved to the Hugging Face Hub and loaded from it.

    A repository contains the files that `teka.models.save` writes, and a model card.

    >>> import tempfile
    >>> from teka.integrations.hub import HubModel
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = HubModel.from_teka("digits").save_pretrained(folder)
    ...     model = HubModel.from_pretrained(folder)
    >>> model.model_config.num_classes
    10

    Args:
        model: The model.
        model_config: Config from which teka can recreate the model.
    """

    def __init__(self, model: nn.Module, model_config: ModelConfig) -> None:
        super().__init__()
        self.model = model
        self.model_config = model_config
        self.training = model.training

    @classmethod
    def from_teka(cls, path: str | Path) -> "HubModel":
        """Load a model file that `teka export` has written, or a packaged model, as a `HubModel`.

        Args:
            path: Folder of the model file, or the name of a packaged model, such as "digits".
        """
        return cls(load(path), read_config(path))

    def forward(
        self, images: Float[Tensor, "batch channels *sides"]
    ) -> Float[Tensor, "batch classes *dense"]:
        """Return the class logits of images with intensities from 0 to 1."""
        return self.model(images)

    def _save_pretrained(self, save_directory: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(
                save(self.model, Path(folder, "model"), self.model_config),
                save_directory,
                dirs_exist_ok=True,
            )

    @classmethod
    def from_pretrained(cls, model_id: str | Path, **options: Any) -> "HubModel":  # pyright: ignore[reportIncompatibleMethodOverride]
        """Load a model from a local folder, or download it from the Hub.

        Args:
            model_id: Path of the folder, or name of the repository, such as "OWNER/NAME".
            options: Options of `huggingface_hub.snapshot_download`, such as `revision` or `token`.
        """
        if not Path(model_id).is_dir():
            model_id = snapshot_download(
                str(model_id), allow_patterns=[CONFIG_FILE, WEIGHTS_FILE], **options
            )
        return cls.from_teka(Path(model_id).resolve())

    def generate_model_card(self, *_: Any, repo_id: str = "OWNER/NAME", **__: Any) -> ModelCard:
        """Return the model card of the repository, with a code example and the class names.

        Args:
            repo_id: Name of the repository in the code example.
        """
        config = self.model_config
        text = CARD.format(
            model=config.model,
            num_classes=config.num_classes,
            sides=", ".join(map(str, config.image_size)),
            num_parameters=count_parameters(self.model),
            repository=repo_id,
            channels=config.in_channels,
            class_names=", ".join(config.class_names or ["not named"]),
            facts=json.dumps(encode(config.facts), indent=2),
        )
        data = ModelCardData(library_name="teka", pipeline_tag="image-classification")
        return ModelCard(f"---\n{data.to_yaml()}\n---\n\n{text}")
