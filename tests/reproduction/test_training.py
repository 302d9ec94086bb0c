import torch
from torch import nn

from reproduction.study.measure import predict
from reproduction.training import fit
from teka.data import load
from teka.training import Run


def test_a_model_is_trained_by_the_recipe_of_a_run():
    dataset = load("digits", image_size=8, train_size=300, validation_size=0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    fit(model, dataset, Run.of(epochs=5, batch_size=20, learning_rate=0.01, gradient_clip=1.0))
    assert not model.training
    predictions = predict(model, dataset.test.images).argmax(dim=1)
    assert (predictions == dataset.test.labels).double().mean() > 0.8
