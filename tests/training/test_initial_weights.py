import dataclasses

import torch

from teka.training import train
from teka.training.checkpoint import CHECKPOINTS, LAST, load_weights
from teka.training.initial_weights import InitialWeights


def test_training_begins_from_them_and_goes_on_from_a_checkpoint(trained, tmp_path):
    # At this learning rate nothing moves by more than rounding.
    run = dataclasses.replace(trained.run, learning_rate=1e-30, epochs=1)
    start = InitialWeights(trained.model.state_dict())
    train(run, tmp_path / "run", dataset=trained.dataset, callbacks=[start], progress_bar=False, throughput=False)
    model = run.make_model(image_size=(8, 8), in_channels=1, num_classes=10)
    load_weights(model, tmp_path / "run" / CHECKPOINTS / LAST)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter, trained.model.get_parameter(name))
    (tmp_path / "run" / "result.json").unlink()
    other = {name: torch.zeros_like(one) for name, one in model.state_dict().items()}
    train(
        run,
        tmp_path / "run",
        resume=True,
        dataset=trained.dataset,
        callbacks=[InitialWeights(other)],
        progress_bar=False,
        throughput=False,
    )
    resumed = run.make_model(image_size=(8, 8), in_channels=1, num_classes=10)
    load_weights(resumed, tmp_path / "run" / CHECKPOINTS / LAST)
    for name, parameter in resumed.named_parameters():
        torch.testing.assert_close(parameter, model.get_parameter(name))
