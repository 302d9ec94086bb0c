from teka.audit.traps import resized


def test_shifts_after_a_resize_are_counted_in_both_pixels():
    (trap,) = resized((28, 28), (224, 224), before_resize=False, max_shift=8)
    assert "Images of 28 × 28 were resized to 224 × 224 and then shifted" in trap.message
    assert "8 pixels is 1 pixels" in trap.message


def test_shifts_before_a_resize_are_said_to_be_inexact():
    (trap,) = resized((28, 28), (56, 56), before_resize=True, max_shift=8)
    assert "one pixel of a shift is 2 pixels for the model" in trap.message


def test_images_that_keep_their_size_are_no_trap():
    assert resized((28, 30), (28, 30), before_resize=False, max_shift=8) == ()
