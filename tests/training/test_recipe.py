import dataclasses

import pytest
import torch
import yaml

from teka.codec import encode
from teka.training import Recipe, Run, read_recipe
from teka.training.recipe import list_recipes


def test_recipes_of_horn2021_differ_only_in_the_learning_rate():
    results, text = (Run.from_recipe(name).recipe for name in ("horn2021", "horn2021-text"))
    assert (results.learning_rate, text.learning_rate) == (5e-5, 5e-4)
    assert dataclasses.replace(text, learning_rate=5e-5) == results
    assert (results.optimizer, results.betas, results.schedule) == ("adam", (0.9, 0.98), "constant")
    assert (results.batch_size, results.gradient_clip, results.patience, results.redraw_every) == (
        22,
        0.5,
        20,
        1000,
    )
    assert (results.random_shift, results.random_flip, results.label_smoothing) == (0, False, 0.0)


def test_recipe_cordonnier2020_has_the_values_of_the_paper():
    recipe = Run.from_recipe("cordonnier2020").recipe
    assert (recipe.optimizer, recipe.learning_rate, recipe.momentum, recipe.weight_decay) == (
        "sgd",
        0.1,
        0.9,
        1e-4,
    )
    assert (recipe.schedule, recipe.warmup, recipe.epochs, recipe.batch_size) == (
        "cosine",
        0.05,
        300,
        100,
    )
    assert (recipe.gradient_clip, recipe.label_smoothing, recipe.patience) == (0.0, 0.0, None)


def test_mnist_recipe_has_its_data_and_a_shift_invariant_model():
    run = Run.from_recipe("mnist", data_dir="data", epochs=2)
    assert (run.data, run.data_dir, run.epochs) == ("mnist", "data", 2)
    assert (run.stem, run.periodic, run.patch_size) == ("polyphase", True, 4)
    model = run.make_model(image_size=(28, 28), in_channels=1, num_classes=10).eval()
    image = torch.rand(1, 1, 28, 28)
    torch.testing.assert_close(model(image.roll((3, 5), (2, 3))), model(image))


def test_every_packaged_recipe_makes_a_run():
    assert {"cordonnier2020", "horn2021", "horn2021-text", "mnist", "teka"} <= set(list_recipes())
    for name in list_recipes():
        Run.from_recipe(name)


def test_recipe_is_loaded_from_a_file(tmp_path):
    fields = encode({**read_recipe("teka"), "epochs": 3, "dim": 16})
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(fields), encoding="utf-8")
    run = Run.from_recipe(tmp_path / "own.yaml")
    assert run == Run.from_recipe("teka", epochs=3, dim=16)


def test_invalid_recipe_file_is_an_error(tmp_path):
    for content, message in {
        "optimiser: adam\n": "Did you mean 'optimizer'",
        "- adam\n": "a YAML file with the fields of a run",
        "a: [\n": "a YAML file",
    }.items():
        (tmp_path / "own.yaml").write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            Run.from_recipe(tmp_path / "own.yaml")


def test_unknown_recipe_is_an_error_with_the_closest_name(tmp_path):
    with pytest.raises(ValueError, match="Did you mean 'horn2021'"):
        read_recipe("horn2012")
    with pytest.raises(
        ValueError, match=r"recipe must be one of 'cordonnier2020', .*The path of a YAML"
    ):
        read_recipe(tmp_path / "none.yaml")


def test_invalid_recipe_value_is_an_error():
    with pytest.raises(ValueError, match=r"epochs must be .*got 0"):
        Recipe(epochs=0)
