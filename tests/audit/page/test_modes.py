from teka.audit.movement import TRANSLATION_MODES, Movement
from teka.audit.page.modes import MODE_WORDS, mode_words


def test_every_mode_is_explained():
    assert set(MODE_WORDS) == set(TRANSLATION_MODES)


def test_sizes_and_background_are_said_where_they_matter():
    assert mode_words(Movement("zero", (0.5, 0.25, 0.0))).endswith("Background: 0.5, 0.25, 0.")
    assert mode_words(Movement("canvas", canvas_size=40)).endswith("Canvas: 40 × 40 pixels.")
    assert mode_words(Movement("crop", crop_size=(24, 28))).endswith("Window: 24 × 28 pixels.")
    assert "Background" not in mode_words(Movement("circular", 0.5))
