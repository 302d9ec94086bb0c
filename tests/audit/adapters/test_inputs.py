import dataclasses
from functools import cache

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from teka.audit.adapters import LoadedModel, Preprocessing, load
from teka.audit.adapters.inputs import (
    ImageOptions,
    choose_default_mode,
    load_audit_images,
    make_audit_inputs,
    make_room_for_shifts,
)
from teka.audit.model_call import call_model
from teka.audit.settings import AuditSettings
from teka.cli.local_models import LOCAL_LOADERS
from teka.data import Normalize, resize_bilinear
from teka.data import load as load_data

SETTINGS = AuditSettings(shifts=((0, 0), (1, -2)))


def model_of(transform: Preprocessing, classes: int = 4) -> LoadedModel:
    def function(images):
        return torch.nn.functional.one_hot(
            images.mean(dim=(1, 2, 3)).mul(7).long() % classes, classes
        ).float()

    return LoadedModel("m", "onnx", function, num_classes=classes, transform=transform)


@pytest.fixture
def arrays(tmp_path):
    levels = np.random.default_rng(0).integers(0, 256, (12, 20, 24, 3), dtype=np.uint8)
    labels = np.arange(12) % 4
    np.savez(
        tmp_path / "data.npz", images=levels, labels=labels, test_images=levels, test_labels=labels
    )
    return str(tmp_path / "data.npz")


def test_a_packaged_model_gets_images_as_in_training():
    case = make_audit_inputs(
        load("mnist", loaders=LOCAL_LOADERS), ImageOptions("digits", images=7), SETTINGS
    )
    assert case.images.shape == (7, 1, 28, 28)
    assert case.known["caveats"] == ()
    every = make_audit_inputs(
        load("digits", loaders=LOCAL_LOADERS), ImageOptions("digits"), SETTINGS
    )
    assert torch.equal(every.images, load_data("digits", image_size=16).test.images)
    assert every.known["class_names"] == tuple("0123456789")
    assert "360 of 360 test images of digits, 16 × 16" in every.description[1]


def test_resizing_to_the_model_is_reported(arrays):
    case = make_audit_inputs(
        model_of(Preprocessing(1, 10, crop=(10, 8))), ImageOptions(arrays), SETTINGS
    )
    assert tuple(case.images.shape) == (12, 1, 10, 8)
    # The crop changes no pixel's size: of 20 × 24 the resize made 10 × 12.
    assert (
        "resized to 10 × 12 and then shifted: a shift of 2 pixels is 4 pixels"
        in case.known["caveats"][0].message
    )
    assert (
        case.known["data_facts"]["preprocessing"]
        == "resized to 10 × 12 (bilinear), cropped to the middle 10 × 8"
    )
    assert case.known["data_facts"]["image_size"] == [20, 24]


def test_with_shift_before_resize_the_function_resizes(arrays):
    subject = model_of(Preprocessing(1, (10, 8)))
    case = make_audit_inputs(subject, ImageOptions(arrays, shift_before_resize=True), SETTINGS)
    assert tuple(case.images.shape) == (12, 1, 20, 24)
    after = make_audit_inputs(subject, ImageOptions(arrays), SETTINGS)
    torch.testing.assert_close(case.function(case.images), after.function(after.images))
    assert "shifted and then resized" in case.known["caveats"][0].message


def test_a_packaged_model_gets_original_images_with_shift_before_resize(tmp_path):
    write_pictures(tmp_path, ("a", "b"), colour=False)
    mnist = load("mnist", loaders=LOCAL_LOADERS)
    case = make_audit_inputs(
        mnist, ImageOptions(str(tmp_path), shift_before_resize=True, ignore_labels=True), SETTINGS
    )
    assert tuple(case.images.shape[1:]) == (1, 9, 7)
    assert call_model(case.function, case.images, "").values.shape[1:] == (10,)
    # Of digits it is the canvas that has a size.
    assert tuple(
        make_audit_inputs(
            mnist, ImageOptions("digits", shift_before_resize=True), SETTINGS
        ).images.shape[2:]
    ) == (28, 28)


def test_models_with_equal_placement_share_images(arrays):
    grey = Preprocessing(1, (10, 8), normalization=Normalize((0.5,), (0.5,)))
    others = (
        dataclasses.replace(grey, normalization=None),
        dataclasses.replace(grey, resampling="bicubic"),
    )
    read = cache(load_audit_images)
    first, same, other = (
        make_audit_inputs(model_of(one), ImageOptions(arrays), SETTINGS, read=read).images
        for one in (grey, *others)
    )
    assert same is first
    assert other is not first


def test_labels_can_be_left_out(arrays):
    assert (
        make_audit_inputs(model_of(Preprocessing()), ImageOptions(arrays), SETTINGS).labels
        is not None
    )
    assert (
        make_audit_inputs(
            model_of(Preprocessing(), 9), ImageOptions(arrays, ignore_labels=True), SETTINGS
        ).labels
        is None
    )
    with pytest.raises(ValueError, match=r"classes must be 9.*got 4"):
        make_audit_inputs(model_of(Preprocessing(), 9), ImageOptions(arrays), SETTINGS)


@pytest.mark.parametrize(
    ("mode", "placed", "field"),
    [("crop", (20, 20), "crop_size"), ("canvas", (14, 12), "canvas_size")],
)
def test_crops_and_canvases_have_the_size_of_the_model(mode, placed, field):
    settings = dataclasses.replace(SETTINGS, modes=(mode,))
    transform, changed = make_room_for_shifts(model_of(Preprocessing(1, (16, 16))), settings)
    # Shifts reach 1 along dy and 2 along dx; the room for them around a window is even.
    assert transform.resized_size((33, 40)) == placed
    assert getattr(changed, field) == (16, 16)
    movement = changed.movement(mode, placed)
    assert movement.seen_size(placed) == (16, 16)


def test_crop_and_canvas_keep_the_aspect_ratio():
    subject = model_of(Preprocessing(3, 256, crop=(224, 224)))
    settings = AuditSettings(shifts=((0, 0), (16, 16)), modes=("crop",))
    assert make_room_for_shifts(subject, settings)[0] == Preprocessing(3, 256, crop=(256, 256))
    wider = dataclasses.replace(settings, shifts=((0, 0), (0, 30)))
    assert make_room_for_shifts(subject, wider)[0] == Preprocessing(3, 284, crop=(224, 284))
    assert make_room_for_shifts(subject, settings, 240)[0] == Preprocessing(3, 256, crop=(240, 240))
    canvas = dataclasses.replace(settings, modes=("canvas",))
    assert make_room_for_shifts(subject, canvas)[0] == Preprocessing(3, 192, crop=(192, 192))


def test_crop_and_canvas_must_be_the_only_mode():
    subject = model_of(Preprocessing(1, (16, 16)))
    with pytest.raises(ValueError, match="canvas alone"):
        make_room_for_shifts(subject, dataclasses.replace(SETTINGS, modes=("circular", "canvas")))
    with pytest.raises(ValueError, match="placed_size"):
        make_room_for_shifts(subject, SETTINGS, 20)
    with pytest.raises(ValueError, match="less than half"):
        make_room_for_shifts(subject, AuditSettings(shifts=((0, 0), (0, 8)), modes=("canvas",)))


def test_a_model_of_any_size_keeps_the_images(arrays):
    case = make_audit_inputs(
        LoadedModel("m", "factory", nn.Flatten().eval(), nn.Flatten().eval()),
        ImageOptions(arrays, ignore_labels=True),
        SETTINGS,
    )
    assert tuple(case.images.shape) == (12, 3, 20, 24)
    assert case.known["data_facts"]["preprocessing"] == "none"


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([("RGB", 128, 200)] * 3, "crop"),
        ([("L", 300, 300)] * 3, "crop"),
        # One picture of another kind or size changes nothing.
        ([("RGB", 300, 300)] * 30 + [("L", 300, 300)], "crop"),
        ([("L", 8, 8)] + [("RGB", 300, 300)] * 30, "crop"),
        ([("RGB", 300, 127)] * 3, "circular"),
        ([("RGB", 32, 32)] * 30 + [("RGB", 300, 300)], "circular"),
    ],
    ids=str,
)
def test_large_pictures_are_cropped_and_small_ones_wrapped(tmp_path, sizes, expected):
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for index, (mode, *size) in enumerate(sizes):
            Image.new(mode, size).save(tmp_path / label / f"{index:03}.png")
    mode, reason = choose_default_mode(ImageOptions(str(tmp_path)))
    assert mode == expected
    assert "128 pixels along the shorter side" in reason
    assert choose_default_mode(ImageOptions(tmp_path.name, str(tmp_path.parent)))[0] == expected


def test_data_sets_and_arrays_have_circular_shifts(arrays):
    for data in ("digits", "cifar10", arrays, "nowhere"):
        assert choose_default_mode(ImageOptions(data)) == ("circular", "a data set of arrays")


def own_model(trained_on: str) -> LoadedModel:
    return dataclasses.replace(model_of(Preprocessing(), 2), trained_on=trained_on)


@pytest.mark.parametrize("kind", ["pictures", "arrays"])
def test_without_a_test_part_all_images_are_used_unless_the_model_trained_on_them(tmp_path, kind):
    data, other = tmp_path / "data", tmp_path / "other"
    write_pictures(data, ("ant", "bee"))
    if kind == "arrays":
        every = load_audit_images(ImageOptions(str(data)), Preprocessing())
        assert every.labels is not None
        levels = (255 * every.images).round().byte().numpy()
        data, other = tmp_path / "data.npz", tmp_path / "other.npz"
        np.savez(data, images=levels, labels=every.labels.numpy(), axes="NCHW")
    outside = make_audit_inputs(
        model_of(Preprocessing(), 2), ImageOptions(str(data), ignore_labels=True), SETTINGS
    )
    assert len(outside.images) == 9
    used = f"9 of 9 images of {data} (the data has no separate test images)"
    assert used in outside.description[1]
    assert outside.known["data_facts"]["used"] == used
    trained = make_audit_inputs(
        own_model(str(data)), ImageOptions(str(data), ignore_labels=True), SETTINGS
    )
    assert torch.equal(trained.images, load_data(str(data)).test.images)
    assert (
        f"1 of 1 held-out images of {data} (the fifth that training did not use)"
        in trained.description[1]
    )
    assert (
        len(
            make_audit_inputs(
                own_model(str(other)), ImageOptions(str(data), ignore_labels=True), SETTINGS
            ).images
        )
        == 9
    )
    assert (
        len(
            make_audit_inputs(
                own_model("mnist"), ImageOptions(str(data), ignore_labels=True), SETTINGS
            ).images
        )
        == 9
    )
    few = make_audit_inputs(
        model_of(Preprocessing(), 2),
        ImageOptions(str(data), ignore_labels=True, images=4),
        SETTINGS,
    )
    assert few.known["data_facts"]["used"].startswith("4 of 9 images")


def test_images_keep_their_order_and_fewer_are_a_subset():
    every = load_audit_images(ImageOptions("digits"), Preprocessing())
    assert torch.equal(every.images, load_data("digits").test.images)
    assert (every.num_available, every.num_classes, every.image_size) == (360, 10, (16, 16))
    some, fewer = (
        load_audit_images(ImageOptions("digits", images=number), Preprocessing(), seed=3)
        for number in (50, 20)
    )
    rows = [tuple(image.flatten().tolist()) for image in some.images]
    found = [rows.index(tuple(image.flatten().tolist())) for image in fewer.images]
    assert found == sorted(found)
    assert some.labels is not None
    assert fewer.labels is not None
    assert some.labels[found].tolist() == fewer.labels.tolist()
    assert not torch.equal(
        fewer.images,
        load_audit_images(ImageOptions("digits", images=20), Preprocessing(), seed=4).images,
    )


def test_images_get_the_channels_and_size_of_the_model():
    found = load_audit_images(
        ImageOptions("digits", image_size=12, images=5), Preprocessing(3, (11, 13))
    )
    assert tuple(found.images.shape) == (5, 3, 11, 13)
    assert found.image_size == (12, 12)


def test_arrays_are_resized_in_whole_levels(tmp_path):
    levels = np.random.default_rng(0).integers(0, 256, (10, 9, 7, 3), dtype=np.uint8)
    labels = np.arange(10) % 4
    np.savez(
        tmp_path / "data.npz", images=levels, labels=labels, test_images=levels, test_labels=labels
    )
    found = load_audit_images(
        ImageOptions("data.npz", data_dir=str(tmp_path), image_size=5), Preprocessing()
    )
    expected = resize_bilinear(torch.from_numpy(levels).permute(0, 3, 1, 2), 5)
    assert torch.equal(found.images, expected.float() / 255)
    assert found.labels is not None
    assert (found.labels.tolist(), found.class_names, found.num_classes) == (
        labels.tolist(),
        None,
        4,
    )


def test_all_images_are_used_if_there_are_fewer_than_requested():
    assert len(load_audit_images(ImageOptions("digits", images=361), Preprocessing()).images) == 360


@pytest.mark.parametrize(("number", "seed", "said"), [(-1, 0, "images"), (5, -1, "seed")])
def test_a_negative_number_of_images_and_a_negative_seed_are_errors(number, seed, said):
    with pytest.raises(ValueError, match=f"{said} must be"):
        load_audit_images(ImageOptions("digits", images=number), Preprocessing(), seed=seed)


def test_missing_data_are_an_error():
    with pytest.raises(ValueError, match="Did you mean 'digits'"):
        load_audit_images(ImageOptions("digitz"), Preprocessing())


def write_pictures(folder, names, *, sizes=((9, 7),), colour=True):
    random = np.random.default_rng(1)
    for label, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for number in range(4 + label):
            height, width = sizes[number % len(sizes)]
            shape = (height, width, 3) if colour else (height, width)
            levels = random.integers(0, 256, shape, dtype=np.uint8)
            Image.fromarray(levels).save(folder / name / f"{number}.png")


@pytest.mark.parametrize("parted", [False, True])
@pytest.mark.parametrize("colour", [False, True])
def test_pictures_equal_those_of_the_data_set(tmp_path, parted, colour):
    for part in ("train", "test") if parted else (".",):
        write_pictures(tmp_path / part, ("bee", "ant"), colour=colour)
    found = load_audit_images(ImageOptions(str(tmp_path)), Preprocessing(), held_out=not parted)
    expected = load_data(str(tmp_path)).test
    assert torch.equal(found.images, expected.images)
    assert found.labels is not None
    assert torch.equal(found.labels, expected.labels)
    assert (found.class_names, found.image_size, found.num_available) == (
        ("ant", "bee"),
        (9, 7),
        len(expected),
    )


def test_each_picture_is_resized_from_its_own_size(tmp_path):
    write_pictures(tmp_path, ("a", "b"), sizes=((9, 7), (20, 30), (16, 16)))
    transform = Preprocessing(3, 6, crop=(5, 5))
    loaded = load_audit_images(ImageOptions(str(tmp_path)), transform)
    images = loaded.images
    assert tuple(images.shape[1:]) == (3, 5, 5)
    assert loaded.image_size is None
    wide = torch.from_numpy(np.array(Image.open(tmp_path / "a" / "1.png"))).permute(2, 0, 1)[None]
    torch.testing.assert_close(images[1:2], transform.resize_images(wide))


def test_several_sizes_that_nothing_resizes_are_an_error(tmp_path):
    write_pictures(tmp_path, ("a", "b"), sizes=((9, 7), (5, 6)))
    with pytest.raises(
        ValueError, match=r"one size, got \(9, 7\) and \(5, 6\) \(1.png\)\. .* Choose"
    ):
        load_audit_images(ImageOptions(str(tmp_path)), Preprocessing())
    resized = load_audit_images(ImageOptions(str(tmp_path), image_size=4), Preprocessing())
    assert resized.image_size == (4, 4)


def test_unreadable_pictures_are_reported_when_they_are_read(tmp_path, monkeypatch):
    write_pictures(tmp_path, ("a", "b"))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    assert choose_default_mode(ImageOptions(str(tmp_path)))[0] == "circular"
    with pytest.raises(ValueError, match=r"png must be .*, got .*exceeds limit"):
        load_audit_images(ImageOptions(str(tmp_path)), Preprocessing())


def test_pictures_without_folders_of_classes_have_no_labels(tmp_path):
    for index in range(3):
        Image.new("RGB", (200, 300), (index, 0, 0)).save(tmp_path / f"{index}.png")
    inputs = make_audit_inputs(
        model_of(Preprocessing(3, (8, 8))), ImageOptions(str(tmp_path)), SETTINGS
    )
    assert (len(inputs.images), inputs.labels) == (3, None)
    assert choose_default_mode(ImageOptions(str(tmp_path)))[0] == "crop"


def test_models_without_declared_preprocessing_have_a_caveat_with_the_options(tmp_path):
    for in_channels, has_color_options in ((1, False), (3, True)):
        model = model_of(Preprocessing(in_channels), 10)
        model = dataclasses.replace(model, declares_preprocessing=False)
        options = ImageOptions("digits", images=3)
        caveat = make_audit_inputs(model, options, SETTINGS).known["caveats"][0]
        assert caveat.name == "unknown preprocessing", in_channels
        assert "--mean 0.5 --std 0.5" in caveat.message, in_channels
        assert ("0.485 0.456 0.406" in caveat.message) == has_color_options, in_channels
        assert ("--bgr" in caveat.message) == has_color_options, in_channels
        # Models of a comparison have equal caveats, which are shown once.
        other = dataclasses.replace(model, name="another")
        assert make_audit_inputs(other, options, SETTINGS).known["caveats"][0] == caveat


def test_an_empty_folder_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"at least two.*Each sub-folder"):
        load_audit_images(ImageOptions(str(tmp_path)), Preprocessing())
