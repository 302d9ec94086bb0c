import dataclasses

import pytest
import torch

from teka.training import Run
from teka.training.classifier import learning_rate_factor, make_optimizer


def model_of(run):
    return run.make_model(image_size=(8, 8), in_channels=1, num_classes=10)


RUN = Run(dim=8, depth=2, heads=2, warmup=0.1, learning_rate=0.5)


def test_the_learning_rate_rises_linearly_and_falls_as_a_cosine_to_zero():
    def factor(step):
        return learning_rate_factor(step, RUN, 100)

    assert [factor(step) for step in range(10)] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert factor(10) == 1.0
    assert factor(55) == pytest.approx(0.5)
    assert factor(100) == pytest.approx(0.0)


def test_a_constant_schedule_stays_at_its_peak_after_the_warm_up():
    run = dataclasses.replace(RUN, schedule="constant")
    assert [learning_rate_factor(step, run, 100) for step in (10, 50, 99)] == [1.0, 1.0, 1.0]


def test_weight_decay_spares_biases_norms_tokens_and_the_parameters_of_positions():
    model = model_of(dataclasses.replace(RUN, depth=2))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    optimizer = make_optimizer(model, RUN)
    decayed, spared = ({names[id(parameter)] for parameter in group["params"]} for group in optimizer.param_groups)
    assert optimizer.param_groups[0]["weight_decay"] == RUN.weight_decay
    assert optimizer.param_groups[1]["weight_decay"] == 0
    assert decayed | spared == set(names.values())
    assert all(name.endswith("weight") and "norm" not in name for name in decayed)
    assert {"class_token", "blocks.0.attention.relative.frequency", "head.bias"} <= spared


def test_adam_takes_every_parameter_once():
    model = model_of(RUN)
    optimizer = make_optimizer(model, dataclasses.replace(RUN, optimizer="adam", weight_decay=0.0))
    assert isinstance(optimizer, torch.optim.Adam)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))
