import dataclasses

import pytest
import yaml

from teka.codec import encode
from teka.training import Recipe, read_recipe


def test_the_papers_two_recipes_differ_in_the_learning_rate_alone():
    results, text = read_recipe("horn2021"), read_recipe("horn2021-text")
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


def test_the_recipe_of_cordonnier_et_al_has_the_numbers_of_their_appendix():
    recipe = read_recipe("cordonnier2020")
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


def test_a_recipe_of_ones_own_is_read_from_its_file(tmp_path):
    fields = encode(dataclasses.replace(read_recipe("teka"), epochs=3))
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(fields), encoding="utf-8")
    assert read_recipe(tmp_path / "own.yaml") == dataclasses.replace(read_recipe("teka"), epochs=3)


def test_a_file_that_is_no_recipe_is_an_error(tmp_path):
    for content, message in {
        "optimizer: adam\n": "every field.*Without epochs, batch_size, learning_rate",
        "optimiser: adam\n": "Did you mean 'optimizer'",
        "- adam\n": "a YAML file of fields and values",
        "a: [\n": "a YAML file",
    }.items():
        (tmp_path / "own.yaml").write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            read_recipe(tmp_path / "own.yaml")


def test_an_unknown_recipe_is_an_error_that_offers_the_nearest(tmp_path):
    with pytest.raises(ValueError, match="Did you mean 'horn2021'"):
        read_recipe("horn2012")
    with pytest.raises(ValueError, match="a YAML file, or one of cordonnier2020, horn2021"):
        read_recipe(tmp_path / "none.yaml")


def test_a_value_that_no_recipe_takes_is_an_error():
    with pytest.raises(ValueError, match=r"epochs must be .*got 0"):
        Recipe(epochs=0)
