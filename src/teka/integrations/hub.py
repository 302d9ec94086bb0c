"""Model files on the Hugging Face Hub."""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from teka.errors import require
from teka.models import ModelConfig, load, read_config, save
from teka.models.model_file import CONFIG_FILE, WEIGHTS_FILE

require("huggingface_hub", "teka.integrations.hub needs", "teka[hub]")

from huggingface_hub import ModelCard, ModelCardData, PyTorchModelHubMixin, snapshot_download  # noqa: E402

CARD = """---
{metadata}
---

# {model}, {num_classes} classes, images of {sides}

A model of teka with {num_parameters:,} parameters.

```python
from teka.integrations.hub import HubModel

model = HubModel.from_pretrained("{repository}")
logits = model(images)  # images of shape (B, {channels}, {sides}), intensities in [0, 1]
```
"""


class HubModel(nn.Module, PyTorchModelHubMixin):
    """Model with its config, as a repository of the Hugging Face Hub.

    The repository holds the files of `teka.models.save` and a model card.

    >>> import tempfile
    >>> from teka.integrations.hub import HubModel
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = HubModel.of("digits").save_pretrained(folder)
    ...     model = HubModel.from_pretrained(folder)
    >>> model.model_config.num_classes
    10

    Args:
        model: Model.
        model_config: Config that describes the model.
    """

    def __init__(self, model: nn.Module, model_config: ModelConfig) -> None:
        super().__init__()
        self.model = model
        self.model_config = model_config

    @classmethod
    def of(cls, path: str | Path) -> "HubModel":
        """Load a model file that `teka export` has written, or a packaged model by its name."""
        return cls(load(path), read_config(path))

    def forward(
        self, images: Float[Tensor, "batch channels *sides"]
    ) -> Float[Tensor, "batch classes *dense"]:
        """Return the logits of images."""
        return self.model(images)

    def _save_pretrained(self, save_directory: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            saved = save(self.model, Path(folder) / "model", self.model_config)
            for name in (CONFIG_FILE, WEIGHTS_FILE):
                shutil.copyfile(saved / name, save_directory / name)

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None,
        cache_dir: str | Path | None,
        force_download: bool,
        local_files_only: bool,
        token: str | bool | None,
        **_: Any,  # the hub passes further options to every model
    ) -> "HubModel":
        if Path(model_id).is_dir():
            return cls.of(Path(model_id).resolve())
        folder = snapshot_download(
            model_id,
            allow_patterns=[CONFIG_FILE, WEIGHTS_FILE],
            revision=revision,
            cache_dir=cache_dir,
            force_download=force_download,
            local_files_only=local_files_only,
            token=token,
        )
        return cls.of(folder)

    def generate_model_card(self, *_: Any, repo_id: str = "OWNER/NAME", **__: Any) -> ModelCard:
        """Return a card with the config of the model, an example, and facts such as accuracy."""
        config = self.model_config
        data = ModelCardData(library_name="teka", pipeline_tag="image-classification")
        sections = [
            CARD.format(
                metadata=data.to_yaml(),
                model=config.model,
                num_classes=config.num_classes,
                sides=", ".join(map(str, config.image_size)),
                num_parameters=sum(parameter.numel() for parameter in self.model.parameters()),
                repository=repo_id,
                channels=config.in_channels,
            )
        ]
        if config.class_names:
            sections.append(f"Classes: {', '.join(config.class_names)}.\n")
        for name, fact in config.facts.items():
            text = str(fact)
            if isinstance(fact, Mapping):
                rows = [f"| {key} | {value} |" for key, value in fact.items() if value is not None]
                text = "\n".join(["| | |", "|---|---|", *rows])
            sections.append(f"## {name.capitalize()}\n\n{text}\n")
        return ModelCard("\n".join(sections))
