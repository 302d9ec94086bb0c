"""Model files of teka on the hub of Hugging Face: `from_pretrained`, `save_pretrained`, `push_to_hub`, a model card."""

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

USE = """```python
from teka.integrations.hub import HubModel

model = HubModel.from_pretrained("{place}")
logits = model(images)  # images of shape (B, {channels}, {size}), intensities in [0, 1]
```"""


class HubModel(nn.Module, PyTorchModelHubMixin):
    """A model with its config, as a repository of the hub: the two files of `teka.models.save`, and a card.

    >>> import tempfile
    >>> from teka.integrations.hub import HubModel
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = HubModel.of("digits").save_pretrained(folder)
    ...     model = HubModel.from_pretrained(folder)
    >>> model.made_with.num_classes
    10

    Args:
        model: The model.
        made_with: What it was made with, and facts about it.
    """

    def __init__(self, model: nn.Module, made_with: ModelConfig) -> None:
        super().__init__()
        self.model, self.made_with = model, made_with

    @classmethod
    def of(cls, path: str | Path) -> "HubModel":
        """The model of a model file, which `teka export` writes, or one that comes with teka."""
        return cls(load(path), read_config(path))

    def forward(
        self, images: Float[Tensor, "batch channels *sides"]
    ) -> Float[Tensor, "batch classes *dense"]:
        """Logits."""
        return self.model(images)

    def _save_pretrained(self, save_directory: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            saved = save(self.model, Path(folder) / "model", self.made_with)
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
        **_: Any,  # what the hub hands to every model
    ) -> "HubModel":
        if Path(model_id).is_dir():
            return cls.of(Path(model_id).resolve())
        options = {
            "revision": revision,
            "cache_dir": cache_dir,
            "force_download": force_download,
            "token": token,
        }
        wanted = [CONFIG_FILE, WEIGHTS_FILE]
        return cls.of(
            snapshot_download(
                model_id, allow_patterns=wanted, local_files_only=local_files_only, **options
            )
        )

    def generate_model_card(self, *_: Any, repo_id: str = "OWNER/NAME", **__: Any) -> ModelCard:
        """What the config knows of the model: what it is, how it is used, and its facts, such as its accuracy."""
        config = self.made_with
        sides = " × ".join(map(str, config.image_size))
        size = sides.replace(" × ", ", ")
        parts = [
            f"---\n{ModelCardData(library_name='teka', pipeline_tag='image-classification').to_yaml()}\n---",
            f"# {config.model}, {config.num_classes} classes, images of {sides}",
            f"A model of teka with {sum(one.numel() for one in self.model.parameters()):,} parameters.",
            USE.format(place=repo_id, channels=config.in_channels, size=size),
        ]
        if config.class_names:
            parts.append(f"Classes: {', '.join(config.class_names)}.")
        parts += [_section(name.capitalize(), fact) for name, fact in config.facts.items()]
        return ModelCard("\n\n".join(parts) + "\n")


def _section(title: str, fact: object) -> str:
    if not isinstance(fact, Mapping):
        return f"## {title}\n\n{fact}"
    rows = [f"| {name} | {value} |" for name, value in fact.items() if value is not None]
    return "\n".join([f"## {title}", "", "| | |", "|---|---|", *rows])
