"""A callback that interrupts a training."""

from lightning.pytorch import Callback


class InterruptAt(Callback):
    def __init__(self, step):
        self.step = step

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == self.step:
            raise KeyboardInterrupt
