"""Training of models that a run cannot name, with the recipe of a run."""

from typing import Any

from lightning.pytorch import Trainer
from torch import nn

from teka.data import Dataset
from teka.training import Execution, Run
from teka.training.batches import BatchSource
from teka.training.classifier import Classifier
from teka.training.trainer import LIGHTNING_PRECISIONS


def fit(model: nn.Module, dataset: Dataset, run: Run) -> None:
    """Train a model in place, and leave it in evaluation mode.

    Args:
        model: Model from images to logits.
        dataset: Training images.
        run: Recipe and seed. Its model is not used.
    """
    recipe = run.recipe
    num_steps = recipe.epochs * -(-len(dataset.train) // recipe.batch_size)
    precision: Any = LIGHTNING_PRECISIONS[recipe.precision]
    trainer = Trainer(
        max_epochs=recipe.epochs,
        accelerator="cpu",
        precision=precision,
        gradient_clip_val=recipe.gradient_clip or None,
        use_distributed_sampler=False,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model.train().requires_grad_(True)
    classifier = Classifier(model, run, num_classes=dataset.num_classes, num_steps=num_steps)
    trainer.fit(classifier, datamodule=BatchSource(dataset, run, Execution()))
    model.eval()
