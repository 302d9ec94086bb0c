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
    choose_size_with_room_for_shifts,
    load_audit_images,
    prepare_audit_inputs,
)
from teka.audit.model_call import call_model
from teka.audit.settings import AuditSettings
from teka.cli.local_models import LOCAL_LOADERS
from teka.data import Normalize, resize_bilinear
from teka.data import load as load_data

SETTINGS = AuditSettings(shifts=((0, 0), (1, -2)))


def make_model(transform: Preprocessing, classes: int = 4) -> LoadedModel:
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


def test_packaged_model_gets_its_training_image_size():
    audit_inputs = prepare_audit_inputs(
        load("mnist", loaders=LOCAL_LOADERS), ImageOptions("digits", images=7), SETTINGS
    )
    assert audit_inputs.images.shape == (7, 1, 28, 28)
    assert audit_inputs.audit_arguments["caveats"] == ()
    every = prepare_audit_inputs(
        load("digits", loaders=LOCAL_LOADERS), ImageOptions("digits"), SETTINGS
    )
    assert torch.equal(every.images, load_data("digits", image_size=16).test.images)
    assert every.audit_arguments["class_names"] == tuple("0123456789")
    assert "360 of 360 test images of digits, 16 × 16" in every.description[1]


def test_resizing_to_the_model_is_reported(arrays):
    audit_inputs = prepare_audit_inputs(
        make_model(Preprocessing(1, 10, crop=(10, 8))), ImageOptions(arrays), SETTINGS
    )
    assert tuple(audit_inputs.images.shape) == (12, 1, 10, 8)
    # The crop does not scale pixels. The resize changed 20 × 24 to 10 × 12.
    assert (
        "resized to 10 × 12 and then shifted: a shift of 2 pixels is 4 pixels"
        in audit_inputs.audit_arguments["caveats"][0].message
    )
    assert (
        audit_inputs.audit_arguments["data_facts"]["preprocessing"]
        == "resized to 10 × 12 (bilinear), cropped to the middle 10 × 8"
    )
    assert audit_inputs.audit_arguments["data_facts"]["image_size"] == [20, 24]


def test_shift_before_resize_moves_the_resize_into_the_function(arrays):
    subject = make_model(Preprocessing(1, (10, 8)))
    audit_inputs = prepare_audit_inputs(
        subject, ImageOptions(arrays, shift_before_resize=True), SETTINGS
    )
    assert tuple(audit_inputs.images.shape) == (12, 1, 20, 24)
    after = prepare_audit_inputs(subject, ImageOptions(arrays), SETTINGS)
    torch.testing.assert_close(
        audit_inputs.function(audit_inputs.images), after.function(after.images)
    )
    assert "shifted and then resized" in audit_inputs.audit_arguments["caveats"][0].message


def test_shift_before_resize_gives_a_packaged_model_original_images(tmp_path):
    write_pictures(tmp_path, ("a", "b"), is_color=False)
    mnist = load("mnist", loaders=LOCAL_LOADERS)
    audit_inputs = prepare_audit_inputs(
        mnist, ImageOptions(str(tmp_path), shift_before_resize=True, ignore_labels=True), SETTINGS
    )
    assert tuple(audit_inputs.images.shape[1:]) == (1, 9, 7)
    assert call_model(audit_inputs.function, audit_inputs.images, "").values.shape[1:] == (10,)
    # The digits data set has a canvas of fixed size.
    assert tuple(
        prepare_audit_inputs(
            mnist, ImageOptions("digits", shift_before_resize=True), SETTINGS
        ).images.shape[2:]
    ) == (28, 28)


def test_models_with_equal_placement_share_images(arrays):
    gray = Preprocessing(1, (10, 8), normalization=Normalize((0.5,), (0.5,)))
    others = (
        dataclasses.replace(gray, normalization=None),
        dataclasses.replace(gray, resampling="bicubic"),
    )
    read = cache(load_audit_images)
    first, same, other = (
        prepare_audit_inputs(
            make_model(transform), ImageOptions(arrays), SETTINGS, read=read
        ).images
        for transform in (gray, *others)
    )
    assert same is first
    assert other is not first


def test_ignore_labels_leaves_out_labels(arrays):
    assert (
        prepare_audit_inputs(make_model(Preprocessing()), ImageOptions(arrays), SETTINGS).labels
        is not None
    )
    assert (
        prepare_audit_inputs(
            make_model(Preprocessing(), 9), ImageOptions(arrays, ignore_labels=True), SETTINGS
        ).labels
        is None
    )
    with pytest.raises(ValueError, match=r"classes must be 9.*got 4"):
        prepare_audit_inputs(make_model(Preprocessing(), 9), ImageOptions(arrays), SETTINGS)


@pytest.mark.parametrize(
    ("mode", "placed", "field"),
    [("crop", (20, 20), "crop_size"), ("canvas", (14, 12), "canvas_size")],
)
def test_crop_and_canvas_have_the_input_size_of_the_model(mode, placed, field):
    settings = dataclasses.replace(SETTINGS, modes=(mode,))
    transform, changed = choose_size_with_room_for_shifts(
        make_model(Preprocessing(1, (16, 16))), settings
    )
    # Shifts reach 1 along dy and 2 along dx. The crop has the same margin on all sides.
    assert transform.resized_size((33, 40)) == placed
    assert getattr(changed, field) == (16, 16)
    movement = changed.movement(mode, placed)
    assert movement.seen_size(placed) == (16, 16)


def test_crop_and_canvas_keep_the_aspect_ratio():
    subject = make_model(Preprocessing(3, 256, crop=(224, 224)))
    settings = AuditSettings(shifts=((0, 0), (16, 16)), modes=("crop",))
    assert choose_size_with_room_for_shifts(subject, settings)[0] == Preprocessing(
        3, 256, crop=(256, 256)
    )
    wider = dataclasses.replace(settings, shifts=((0, 0), (0, 30)))
    assert choose_size_with_room_for_shifts(subject, wider)[0] == Preprocessing(
        3, 284, crop=(224, 284)
    )
    assert choose_size_with_room_for_shifts(subject, settings, 240)[0] == Preprocessing(
        3, 256, crop=(240, 240)
    )
    canvas = dataclasses.replace(settings, modes=("canvas",))
    assert choose_size_with_room_for_shifts(subject, canvas)[0] == Preprocessing(
        3, 192, crop=(192, 192)
    )


def test_crop_for_an_unknown_input_size_keeps_the_size_of_the_images(tmp_path):
    for index in range(3):
        Image.new("RGB", (64, 96)).save(tmp_path / f"{index}.png")
    subject = make_model(Preprocessing(3))
    settings = AuditSettings(modes=("crop",))
    audit_inputs = prepare_audit_inputs(subject, ImageOptions(str(tmp_path)), settings)
    # The default shifts are up to 4 pixels.
    assert audit_inputs.images.shape == (3, 3, 104, 72)
    seen = audit_inputs.settings.movement("crop", (104, 72)).seen_size((104, 72))
    assert seen == (96, 64)  # multiples of 32, which many models require
    assert (
        "64 were resized to 104 × 72 and then" in audit_inputs.audit_arguments["caveats"][0].message
    )
    assert "resized to 104 × 72" in audit_inputs.description[1]


@pytest.mark.parametrize(
    ("mode", "in_channels", "words"),
    [
        ("RGB", 1, ", converted to gray"),
        ("L", 3, ", gray repeated in 3 channels"),
        ("L", 1, ""),
        ("RGB", 3, ""),
        ("RGB", None, ""),
    ],
)
def test_conversion_of_the_channels_is_stated(tmp_path, mode, in_channels, words):
    for index in range(3):
        Image.new(mode, (64, 64)).save(tmp_path / f"{index}.png")
    loaded = load_audit_images(ImageOptions(str(tmp_path)), Preprocessing(in_channels))
    assert loaded.images.shape[1] == (in_channels or 3)
    assert loaded.description.endswith(f"(the data has no separate test images){words}")


def test_crop_and_canvas_must_be_the_only_mode():
    subject = make_model(Preprocessing(1, (16, 16)))
    with pytest.raises(ValueError, match="canvas alone"):
        choose_size_with_room_for_shifts(
            subject, dataclasses.replace(SETTINGS, modes=("circular", "canvas"))
        )
    with pytest.raises(ValueError, match="placed_size"):
        choose_size_with_room_for_shifts(subject, SETTINGS, 20)
    with pytest.raises(ValueError, match="less than half"):
        choose_size_with_room_for_shifts(
            subject, AuditSettings(shifts=((0, 0), (0, 8)), modes=("canvas",))
        )


def test_model_without_an_input_size_keeps_the_image_size(arrays):
    audit_inputs = prepare_audit_inputs(
        LoadedModel("m", "factory", nn.Flatten().eval(), nn.Flatten().eval()),
        ImageOptions(arrays, ignore_labels=True),
        SETTINGS,
    )
    assert tuple(audit_inputs.images.shape) == (12, 3, 20, 24)
    assert audit_inputs.audit_arguments["data_facts"]["preprocessing"] == "none"


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([("RGB", 128, 200)] * 3, "crop"),
        ([("L", 300, 300)] * 3, "crop"),
        # A single image of another color mode or size does not change the mode.
        ([("RGB", 300, 300)] * 30 + [("L", 300, 300)], "crop"),
        ([("L", 8, 8)] + [("RGB", 300, 300)] * 30, "crop"),
        ([("RGB", 300, 127)] * 3, "circular"),
        ([("RGB", 32, 32)] * 30 + [("RGB", 300, 300)], "circular"),
    ],
    ids=str,
)
def test_default_mode_is_crop_for_large_and_circular_for_small_pictures(tmp_path, sizes, expected):
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for index, (mode, *size) in enumerate(sizes):
            Image.new(mode, size).save(tmp_path / label / f"{index:03}.png")
    mode, reason = choose_default_mode(ImageOptions(str(tmp_path)))
    assert mode == expected
    assert "128 pixels along the shorter side" in reason
    assert choose_default_mode(ImageOptions(tmp_path.name, str(tmp_path.parent)))[0] == expected


def test_default_mode_of_data_sets_and_arrays_is_circular(arrays):
    for data in ("digits", "cifar10", arrays, "nowhere"):
        assert choose_default_mode(ImageOptions(data)) == (
            "circular",
            "the images are not picture files",
        )


def make_trained_model(trained_on: str) -> LoadedModel:
    return dataclasses.replace(make_model(Preprocessing(), 2), trained_on=trained_on)


@pytest.mark.parametrize("kind", ["pictures", "arrays"])
def test_data_without_a_test_split_is_used_unless_trained_on(tmp_path, kind):
    data, other = tmp_path / "data", tmp_path / "other"
    write_pictures(data, ("ant", "bee"))
    if kind == "arrays":
        every = load_audit_images(ImageOptions(str(data)), Preprocessing())
        assert every.labels is not None
        levels = (255 * every.images).round().byte().numpy()
        data, other = tmp_path / "data.npz", tmp_path / "other.npz"
        np.savez(data, images=levels, labels=every.labels.numpy(), axes="NCHW")
    outside = prepare_audit_inputs(
        make_model(Preprocessing(), 2), ImageOptions(str(data), ignore_labels=True), SETTINGS
    )
    assert len(outside.images) == 9
    used = f"9 of 9 images of {data} (the data has no separate test images)"
    assert used in outside.description[1]
    assert outside.audit_arguments["data_facts"]["used"] == used
    trained = prepare_audit_inputs(
        make_trained_model(str(data)), ImageOptions(str(data), ignore_labels=True), SETTINGS
    )
    assert torch.equal(trained.images, load_data(str(data)).test.images)
    assert (
        f"1 of 1 held-out images of {data} (the fifth that training did not use)"
        in trained.description[1]
    )
    assert (
        len(
            prepare_audit_inputs(
                make_trained_model(str(other)),
                ImageOptions(str(data), ignore_labels=True),
                SETTINGS,
            ).images
        )
        == 9
    )
    assert (
        len(
            prepare_audit_inputs(
                make_trained_model("mnist"), ImageOptions(str(data), ignore_labels=True), SETTINGS
            ).images
        )
        == 9
    )
    few = prepare_audit_inputs(
        make_model(Preprocessing(), 2),
        ImageOptions(str(data), ignore_labels=True, images=4),
        SETTINGS,
    )
    assert few.audit_arguments["data_facts"]["used"].startswith("4 of 9 images")


def test_images_keep_their_order_and_smaller_samples_are_subsets():
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


def test_images_have_the_channels_and_size_of_the_model():
    found = load_audit_images(
        ImageOptions("digits", image_size=12, images=5), Preprocessing(3, (11, 13))
    )
    assert tuple(found.images.shape) == (5, 3, 11, 13)
    assert found.image_size == (12, 12)


def test_image_size_rounds_resized_arrays_to_integer_levels(tmp_path):
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


@pytest.mark.parametrize(("number", "seed", "argument"), [(-1, 0, "images"), (5, -1, "seed")])
def test_negative_number_of_images_and_negative_seed_are_errors(number, seed, argument):
    with pytest.raises(ValueError, match=f"{argument} must be"):
        load_audit_images(ImageOptions("digits", images=number), Preprocessing(), seed=seed)


def test_unknown_data_set_is_an_error():
    with pytest.raises(ValueError, match="Did you mean 'digits'"):
        load_audit_images(ImageOptions("digitz"), Preprocessing())


def write_pictures(folder, names, *, sizes=((9, 7),), is_color=True):
    random = np.random.default_rng(1)
    for label, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for number in range(4 + label):
            height, width = sizes[number % len(sizes)]
            shape = (height, width, 3) if is_color else (height, width)
            levels = random.integers(0, 256, shape, dtype=np.uint8)
            Image.fromarray(levels).save(folder / name / f"{number}.png")


@pytest.mark.parametrize("has_splits", [False, True])
@pytest.mark.parametrize("is_color", [False, True])
def test_audit_images_equal_those_of_the_data_set(tmp_path, has_splits, is_color):
    for split in ("train", "test") if has_splits else (".",):
        write_pictures(tmp_path / split, ("bee", "ant"), is_color=is_color)
    found = load_audit_images(ImageOptions(str(tmp_path)), Preprocessing(), held_out=not has_splits)
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


def test_different_sizes_without_a_resize_are_an_error(tmp_path):
    write_pictures(tmp_path, ("a", "b"), sizes=((9, 7), (5, 6)))
    with pytest.raises(
        ValueError, match=r"one size, got \(9, 7\) and \(5, 6\) \(1.png\)\. .* Choose"
    ):
        load_audit_images(ImageOptions(str(tmp_path)), Preprocessing())
    resized = load_audit_images(ImageOptions(str(tmp_path), image_size=4), Preprocessing())
    assert resized.image_size == (4, 4)


def test_unreadable_picture_is_an_error_only_when_it_is_read(tmp_path, monkeypatch):
    write_pictures(tmp_path, ("a", "b"))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    assert choose_default_mode(ImageOptions(str(tmp_path)))[0] == "circular"
    with pytest.raises(ValueError, match=r"png must be .*, got .*exceeds limit"):
        load_audit_images(ImageOptions(str(tmp_path)), Preprocessing())


def test_pictures_without_class_folders_have_no_labels(tmp_path):
    for index in range(3):
        Image.new("RGB", (200, 300), (index, 0, 0)).save(tmp_path / f"{index}.png")
    inputs = prepare_audit_inputs(
        make_model(Preprocessing(3, (8, 8))), ImageOptions(str(tmp_path)), SETTINGS
    )
    assert (len(inputs.images), inputs.labels) == (3, None)
    assert choose_default_mode(ImageOptions(str(tmp_path)))[0] == "crop"


def test_undeclared_preprocessing_has_a_caveat_that_lists_the_options(tmp_path):
    for in_channels, has_color_options in ((1, False), (3, True)):
        model = make_model(Preprocessing(in_channels), 10)
        model = dataclasses.replace(model, declares_preprocessing=False)
        options = ImageOptions("digits", images=3)
        caveat = prepare_audit_inputs(model, options, SETTINGS).audit_arguments["caveats"][0]
        assert caveat.name == "unknown preprocessing", in_channels
        assert "--mean 0.5 --std 0.5" in caveat.message, in_channels
        assert ("0.485 0.456 0.406" in caveat.message) == has_color_options, in_channels
        assert ("--bgr" in caveat.message) == has_color_options, in_channels
        # Models of a comparison have equal caveats, which are shown once.
        other = dataclasses.replace(model, name="another")
        assert (
            prepare_audit_inputs(other, options, SETTINGS).audit_arguments["caveats"][0] == caveat
        )


def test_empty_folder_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"the pictures in .* must be one or more, got none"):
        load_audit_images(ImageOptions(str(tmp_path)), Preprocessing())


def test_labels_beside_pictures_are_mentioned_and_a_missing_data_dir_is_an_error(tmp_path):
    write_pictures(tmp_path, ("ant", "bee"))
    for picture in sorted(tmp_path.glob("*/*")):
        picture.rename(tmp_path / f"{picture.parent.name}_{picture.name}")
    for folder in ("ant", "bee"):
        (tmp_path / folder).rmdir()
    description = load_audit_images(ImageOptions(str(tmp_path)), Preprocessing()).description
    assert "without labels" not in description
    rows = [f"{picture.name},{picture.name[:3]}" for picture in sorted(tmp_path.iterdir())]
    table = tmp_path / "labels.csv"
    table.write_text("\n".join(["file,label", *rows]))
    chosen = load_audit_images(ImageOptions(str(tmp_path)), Preprocessing())
    assert chosen.labels is None
    assert f"(without labels; to use them, pass --data {table})" in chosen.description
    labels = load_audit_images(ImageOptions(str(table)), Preprocessing()).labels
    assert labels is not None
    assert set(labels.tolist()) == {0, 1}
    with pytest.raises(ValueError, match=r"data_dir must be a folder that exists, got '/missing'"):
        load_audit_images(ImageOptions(str(tmp_path), data_dir="/missing"), Preprocessing())
