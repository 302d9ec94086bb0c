import dataclasses
import json

from tests.audit.page.audit_reports import SQUARE, make_example, make_metrics, make_report

from teka.audit.movement import Movement
from teka.audit.page.examples import write_examples


def content_of(*reports):
    return json.loads(write_examples(reports))


def test_answers_stand_in_the_order_of_their_shifts():
    example = make_example(3)
    content = content_of(make_report(examples=(example,)))
    (image,) = content["images"]
    (answer,) = image["answers"]
    assert content["shifts"][answer["shifts"]] == [list(shift) for shift in SQUARE]
    assert tuple(answer["classes"]) == example.predictions
    assert tuple(answer["probabilities"]) == example.probabilities


def test_an_image_that_two_models_saw_is_there_once():
    content = content_of(
        make_report("one"), make_report("none", examples=()), make_report("two", examples=(make_example(1),))
    )
    assert [[answer["model"] for answer in image["answers"]] for image in content["images"]] == [[0], [0, 2]]
    assert len(content["pixels"]) == 2
    assert len(content["shifts"]) == 1


def test_an_image_of_other_pixels_is_another_image():
    other = dataclasses.replace(make_example(3), image=make_example(4).image)
    content = content_of(make_report("one", examples=(make_example(3),)), make_report("two", examples=(other,)))
    assert len(content["images"]) == 2


def test_background_and_window_are_in_levels_and_pixels():
    movements = (Movement("zero", (0.5, 0.0, 1.0)), Movement("crop", crop_size=5), Movement("canvas", 0.2, 11))
    report = make_report(
        metrics=tuple(make_metrics(movement) for movement in movements),
        examples=tuple(make_example(0, movement.mode, channels=3) for movement in movements),
    )
    zero, crop, canvas = content_of(report)["movements"]
    assert zero == {"mode": "zero", "background": [128, 0, 255], "seen": [11, 7]}
    assert crop["seen"] == [5, 5]
    assert canvas["background"] == [51, 51, 51]


def test_nothing_in_it_ends_the_script():
    evil = "</script><!--&"
    text = write_examples([make_report(evil, data={"name": "x", "class_names": [evil]})])
    assert not set("<>&") & set(text)
    assert json.loads(text)["models"][0]["classes"] == [evil]
