"""The batches of a training, made where it is known which process of how many this is."""

from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader

from teka.data import Dataset
from teka.training.batches import batches, train_batches
from teka.training.execution import Execution
from teka.training.run import Run


class BatchSource(LightningDataModule):
    """Training and held-out images for Lightning's Trainer.

    Args:
        dataset: The data.
        run: Its batches and their order.
        execution: What the batches are divided among.
    """

    def __init__(self, dataset: Dataset, run: Run, execution: Execution) -> None:
        super().__init__()
        self.dataset, self.run, self.execution = dataset, run, execution

    def _ranks(self) -> dict[str, int]:
        return {} if self.trainer is None else {"rank": self.trainer.global_rank, "world_size": self.trainer.world_size}

    def train_dataloader(self) -> DataLoader:
        """Shuffled training images, those of this process."""
        return train_batches(
            self.dataset.train,
            batch_size=self.run.batch_size,
            seed=self.run.seed,
            accumulate=self.execution.accumulate,
            **self._ranks(),
        )

    def val_dataloader(self) -> DataLoader | list:
        """Held-out images, those of this process; nothing if none are."""
        if not len(self.dataset.validation):
            return []
        return batches(self.dataset.validation, batch_size=self.run.batch_size, **self._ranks())
