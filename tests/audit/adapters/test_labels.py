import numpy as np
import pytest
import torch
from PIL import Image

from teka.audit import AuditSettings
from teka.audit.adapters import LoadedModel
from teka.audit.adapters.inputs import ImageOptions, prepare_audit_inputs
from teka.audit.adapters.labels import match_labels

LABELS = torch.tensor([2, 0, 1, 1])


def make_model(names: tuple[str, ...] | None, num_classes: int | None = None) -> LoadedModel:
    return LoadedModel(
        "m", "onnx", lambda images: images, class_names=names, num_classes=num_classes
    )


def match(data_names, model_names=None, num_classes=None) -> tuple[list[int], str]:
    """Return the model's class of each class of the data, and the messages of the caveats."""
    count = len(data_names)
    labels, caveats = match_labels(
        torch.arange(count), count, data_names, make_model(model_names, num_classes)
    )
    assert all(caveat.name == "labels matched by number" for caveat in caveats)
    return labels.tolist(), " ".join(caveat.message for caveat in caveats)


def test_labels_are_matched_by_class_name():
    model = make_model(("dog", "cat", "owl", "ant", "bee"), 5)
    labels, caveats = match_labels(LABELS, 3, ("ant", "cat", "dog"), model)
    assert labels.tolist() == [0, 3, 1, 1]
    assert caveats == []


@pytest.mark.parametrize(
    ("data_names", "model_names", "expected"),
    [
        (("cat", "dog", "owl"), ("Owl", "Dog", "Cat"), [2, 1, 0]),
        (("Cat", "cat"), ("cat", "Cat"), [1, 0]),
        (("great_white_shark", " hen"), ("hen", "great white  shark"), [1, 0]),
        (("cafe\u0301", "bar"), ("bar", "caf\u00e9"), [1, 0]),
        (
            ("goldfish", "Tinca tinca"),
            ("tench, Tinca tinca", "goldfish, Carassius auratus"),
            [1, 0],
        ),
        (("tench, Tinca tinca", "hen"), ("hen", "tench", "cock"), [1, 0]),
        (("10", "2"), ("2", "10"), [1, 0]),
        # "crane" is the full name of one class and a synonym of another class.
        (("crane", "hen"), ("crane, machine", "hen", "crane"), [2, 1]),
        (("n01440764", "n01443537"), ("n01443537", "n01440764", "n01484850"), [1, 0]),
    ],
    ids=str,
)
def test_names_match_regardless_of_case_spaces_and_synonyms(data_names, model_names, expected):
    assert match(data_names, model_names) == (expected, "")


@pytest.mark.parametrize(
    ("data_names", "model_names", "message"),
    [
        (
            ("ant", "cat", "fox"),
            ("dog", "cat", "owl", "ant", "bee"),
            r"be class names of m \('dog', 'cat', 'owl', …\), got 'fox'. .*--ignore-l",
        ),
        (("x", "y", "z"), ("a", "b", "c"), "got 'x', 'y', 'z'"),
        (
            ("crane", "hen"),
            ("hen", "crane", "crane"),
            r"got 'crane', which matches 'crane' \(1\) and 'crane' \(2\)",
        ),
        (("Cat", "CAT"), ("cat", "dog"), "got 'Cat' and 'CAT', which both match 'cat'"),
        (("0", "1"), ("1", "2"), "got '0'"),
        (("n01440764", "n01443537"), ("a", "b", "c"), "got 'n01440764', 'n01443537'"),
    ],
    ids=str,
)
def test_names_without_a_unique_match_are_an_error(data_names, model_names, message):
    with pytest.raises(ValueError, match=message):
        match(data_names, model_names)


@pytest.mark.parametrize(
    ("numbers", "model", "expected", "message"),
    [
        (range(5), {"num_classes": 5}, [0, 1, 2, 3, 4], None),
        (range(5), {}, [0, 1, 2, 3, 4], None),
        (range(12), {"num_classes": 12}, list(range(12)), "sorts folder names as text"),
        (range(12), {}, list(range(12)), "sorts folder names as text"),
        ([0, 7, 250], {"num_classes": 1000}, [0, 7, 250], "folder k was used as class k"),
        ([0, 7, 250], {}, [0, 7, 250], "folder k was used as class k"),
        ([1, 2, 3], {"num_classes": 3}, [0, 1, 2], "Folders 1 to 3 were used as classes 0 to 2"),
        ([1, 2, 3], {"num_classes": 4}, [1, 2, 3], "folder k was used as class k"),
        ([0, 1], {"model_names": ("no", "yes")}, [0, 1], "folder k was used as class k"),
    ],
    ids=str,
)
def test_numeric_folder_names_are_classes_with_a_caveat(numbers, model, expected, message):
    indices, caveats = match(tuple(map(str, numbers)), **model)
    assert indices == expected
    assert (caveats == "") if message is None else (message in caveats)


@pytest.mark.parametrize("numbers", [(0, 5), (2, 3), (-1, 0)])
def test_numeric_folder_names_outside_the_classes_are_an_error(numbers):
    with pytest.raises(
        ValueError,
        match=rf"must be classes of m, from 0 to 2.*got 'from {numbers[0]} to {numbers[1]}'",
    ):
        match(tuple(map(str, numbers)), num_classes=3)


def test_wordnet_ids_are_in_imagenet_order():
    indices, caveats = match(("n01440764", "n01443537"), ("tench", "goldfish"))
    assert indices == [0, 1]
    assert "WordNet ids" in caveats


def test_names_on_one_side_only_are_matched_by_number_with_a_caveat():
    indices, message = match(("ant", "bee"))
    assert indices == [0, 1]
    assert "class k of the model, because the model has no class names" in message
    assert "0 is 'ant', 1 is 'bee'" in message
    labels, caveats = match_labels(LABELS, 3, None, make_model(("a", "b", "c")))
    assert labels.tolist() == LABELS.tolist()
    assert "the data have no class names" in caveats[0].message


def test_labels_without_any_names_are_unchanged():
    for num_classes in (3, None):
        labels, caveats = match_labels(LABELS, 3, None, make_model(None, num_classes))
        assert labels.tolist() == LABELS.tolist()
        assert caveats == []


@pytest.mark.parametrize(
    ("data_names", "model_names"), [(None, None), (("x", "y", "z"), None), (None, ("a", "b"))]
)
def test_number_of_classes_must_equal_that_of_the_model(data_names, model_names):
    with pytest.raises(ValueError, match=r"must be 2, the number of classes of m.*got 3"):
        match_labels(LABELS, 3, data_names, make_model(model_names, 2))


def test_numeric_folder_names_have_labels_in_numeric_order(tmp_path):
    levels = {str(label): np.full((8, 8, 3), 20 * label + 5, np.uint8) for label in range(12)}
    for name, picture in levels.items():
        (tmp_path / name).mkdir()
        for number in range(2):
            Image.fromarray(picture).save(tmp_path / name / f"{number}.png")

    def perfect(images: torch.Tensor) -> torch.Tensor:
        level = (255 * images.mean((1, 2, 3)) - 5) / 20
        return -(level[:, None] - torch.arange(12.0)).square()

    audit_inputs = prepare_audit_inputs(
        LoadedModel("perfect", "factory", perfect),
        ImageOptions(str(tmp_path)),
        AuditSettings(shifts=((0, 0),)),
    )
    assert audit_inputs.labels is not None
    assert torch.equal(perfect(audit_inputs.images).argmax(1), audit_inputs.labels)
    assert audit_inputs.audit_arguments["class_names"] == tuple(map(str, range(12)))
