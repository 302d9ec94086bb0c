from fractions import Fraction

import torch
from torch import nn

from teka.audit.layers.layouts import (
    Layout,
    LayoutRecognizer,
    declared_stride,
    find_absolute_embeddings,
    has_noncircular_padding,
)
from teka.models import Performer

OTHER = nn.GELU()
IMAGE_SIZE = (24, 36)


def recognize(recognizer, module, shape, source=None, source_shape=()):
    found = recognizer.recognize(module, (2, *shape), source, source_shape)
    assert isinstance(found, Layout), found
    return found


def start_recognizer(image_size=IMAGE_SIZE):
    recognizer = LayoutRecognizer(image_size)
    first = recognize(recognizer, OTHER, (3, *image_size))
    assert first == Layout("map", image_size, (Fraction(1), Fraction(1)))
    return recognizer, first


def recognize_patches(prefix=0):
    recognizer, first = start_recognizer()
    recognize(recognizer, nn.Conv2d(3, 7, 4, 4), (7, 6, 9), source=first)
    tokens = recognize(recognizer, OTHER, (54 + prefix, 7))
    assert tokens == Layout("tokens", (6, 9), (Fraction(4), Fraction(4)), prefix)
    return recognizer, tokens


def test_strides_of_unpadded_convolutions_multiply():
    # 24 and 36 become 20 and 32, 10 and 16, 6 and 12: no ratio of sizes gives the stride of 2.
    recognizer, found = start_recognizer()
    for module, grid in (
        (nn.Conv2d(3, 4, 5), (20, 32)),
        (nn.MaxPool2d(2), (10, 16)),
        (nn.Conv2d(4, 4, 5), (6, 12)),
    ):
        found = recognize(recognizer, module, (4, *grid), source=found)
    assert found == Layout("map", (6, 12), (Fraction(2), Fraction(2)))


def test_each_axis_has_its_own_stride():
    recognizer, first = start_recognizer()
    found = recognize(recognizer, nn.Conv2d(3, 4, 1, (3, 2)), (4, 8, 18), source=first)
    assert found.stride == (3, 2)


def test_upsampling_divides_the_stride():
    recognizer, first = start_recognizer()
    down = recognize(recognizer, nn.Conv2d(3, 4, 4, 4), (4, 6, 9), source=first)
    up = recognize(recognizer, nn.ConvTranspose2d(4, 4, 2, 2), (4, 12, 18), source=down)
    assert up.stride == (2, 2)
    assert recognize(recognizer, nn.Upsample(scale_factor=4), (4, 48, 72), source=up).stride == (
        0.5,
        0.5,
    )
    assert recognize(recognizer, nn.AdaptiveAvgPool2d((2, 3)), (4, 2, 3), source=down).stride == (
        12,
        12,
    )


def test_padding_keeps_the_stride():
    recognizer, first = start_recognizer()
    assert recognize(recognizer, nn.ZeroPad2d(1), (3, 26, 38), source=first).stride == (1, 1)
    recognizer, _ = start_recognizer()
    assert recognize(recognizer, nn.Conv2d(3, 4, 3, 2), (3, 25, 37)).stride == (1, 1)


def test_tokens_after_prefix_tokens_have_the_grid_of_patches():
    for prefix in [0, 1, 2, 5]:
        recognize_patches(prefix)


def test_tokens_without_an_earlier_map_have_square_patches():
    recognizer, _ = start_recognizer()
    assert recognize(recognizer, nn.Linear(48, 7), (54, 7)) == Layout(
        "tokens", (6, 9), (Fraction(4), Fraction(4))
    )


def test_merged_patches_with_as_many_channels_as_tokens_are_tokens():
    recognizer = LayoutRecognizer((16, 16))
    recognize(recognizer, OTHER, (64, 16))
    assert recognize(recognizer, nn.LayerNorm(64), (16, 64)).grid == (4, 4)


def test_class_token_is_recognized_if_channels_equal_tokens():
    recognizer = LayoutRecognizer((16, 16))
    recognize(recognizer, OTHER, (16, 16))
    assert recognize(recognizer, nn.Dropout(), (17, 16)) == Layout(
        "tokens", (4, 4), (Fraction(4),) * 2, 1
    )


def test_transposed_tokens_are_a_flat_map():
    recognizer, _ = recognize_patches()
    assert recognize(recognizer, nn.Linear(54, 20), (7, 54)).name == "flat map"


def test_pooled_transposed_tokens_are_a_vector():
    recognizer, _ = recognize_patches()
    pool = nn.AdaptiveAvgPool1d(1)
    source = recognize(recognizer, pool, (7, 54))
    assert source.name == "flat map"
    pooled = recognize(recognizer, pool, (7, 1), source=source, source_shape=(2, 7, 54))
    assert pooled.name == "vector"


def test_attention_weights_are_not_a_map():
    recognizer, _ = recognize_patches(1)
    reason = recognizer.recognize(nn.Dropout(), (2, 4, 55, 55), None, ())
    assert isinstance(reason, str)


def test_tokens_of_several_heads_are_tokens():
    recognizer, _ = recognize_patches(1)
    assert recognize(recognizer, nn.LayerNorm(5), (55, 4, 5)).name == "tokens"
    reason = recognizer.recognize(nn.LayerNorm(5), (2, 4, 55, 5), None, ())
    assert isinstance(reason, str)


def test_linear_layers_and_norms_read_channels_last_maps():
    recognizer = LayoutRecognizer((6, 6))
    recognize(recognizer, OTHER, (6, 6, 6))
    assert recognize(recognizer, nn.Linear(6, 9), (6, 6, 6)).name == "channels-last map"
    assert recognize(recognizer, nn.BatchNorm2d(6), (6, 6, 6)).name == "map"


def test_vector_of_the_size_of_the_previous_map_is_flattened():
    recognizer, first = start_recognizer()
    recognize(recognizer, nn.Conv2d(3, 2, 12, 12), (2, 2, 3), source=first)
    assert recognize(recognizer, nn.Flatten(), (12,)).name == "flattened"
    projected = recognize(recognizer, nn.Linear(12, 12), (12,), source_shape=(2, 12))
    assert projected.name == "vector"
    assert recognize(recognizer, nn.Linear(12, 12), (12,)).name == "vector"


def test_single_cell_is_a_vector_with_the_previous_coarsest_stride():
    for shape in [(5, 1, 1), (1, 5)]:
        recognizer, _ = recognize_patches()
        assert recognize(recognizer, nn.AdaptiveAvgPool2d(1), shape) == Layout(
            "vector", (), (Fraction(4), Fraction(4))
        ), shape


def test_unknown_layouts_have_a_reason():
    for shape in [(2, 3, 4, 5), (11, 13, 17), (31, 37)]:
        recognizer, _ = start_recognizer()
        assert isinstance(recognizer.recognize(OTHER, (2, *shape), None, ()), str), shape


def test_declared_strides_and_padding_are_read():
    for module, stride, pads in [
        (nn.Conv2d(1, 1, 3, 2, 1), (2, 2), True),
        (nn.Conv2d(1, 1, 3, padding="same"), (1, 1), True),
        (nn.Conv2d(1, 1, 3, padding="valid"), (1, 1), False),
        (nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"), (1, 1), False),
        (nn.MaxPool2d(3), (3, 3), False),
        (nn.BatchNorm2d(1), None, False),
        (nn.Linear(1, 1), None, False),
    ]:
        assert declared_stride(module) == stride, (module, stride, pads)
        assert has_noncircular_padding(module) == pads, (module, stride, pads)


CELL_GRID = (3, 5)
HALF = (Fraction(2), Fraction(2))
CELLS = torch.rand(2, 7, *CELL_GRID)
PREFIX = torch.full((2, 2, 7), torch.nan)
TOKENS = torch.cat([PREFIX, CELLS.flatten(2).transpose(1, 2)], dim=1)


def test_layouts_are_converted_to_channels_first_without_prefix_tokens():
    for name, output, prefix in [
        ("map", CELLS, 0),
        ("channels-last map", CELLS.permute(0, 2, 3, 1), 0),
        ("flat map", CELLS.flatten(2), 0),
        ("flattened", CELLS.flatten(1), 0),
        ("tokens", TOKENS, 2),
        ("tokens", TOKENS.unflatten(2, (7, 1)), 2),
    ]:
        assert torch.equal(
            Layout(name, CELL_GRID, HALF, prefix).to_channels_first(output), CELLS
        ), (name, output, prefix)


def test_vector_has_no_cells():
    vector = Layout("vector", (), HALF).to_channels_first(torch.rand(2, 7, 1, 1))
    assert vector.shape == (2, 7, 1, 1)


def test_num_tokens_includes_prefix_tokens():
    assert Layout("tokens", CELL_GRID, HALF, 2).num_tokens == 17


GRIDS = (((3, 5), 0), ((3, 5), 1))


def module_with(**tensors):
    module = nn.Module()
    for name, tensor in tensors.items():
        setattr(module, name, tensor if isinstance(tensor, nn.Module) else nn.Parameter(tensor))
    return nn.ModuleDict({"stem": module})


ABSOLUTE = (
    "pos_embed",
    "position_embeddings",
    "positional_embedding",
    "pos_embedding",
    "pos_enc",
    "pos_emb",
    "pe",
)


def test_absolute_embeddings_are_recognized_by_name():
    for name in [*ABSOLUTE, "absolute_pos_embed", "pos_embed_y", "positional_encoding"]:
        assert find_absolute_embeddings(module_with(**{name: torch.zeros(4)}), ()) == (
            f"stem.{name}",
        ), name


def test_relative_embeddings_and_class_tokens_are_not_absolute():
    for name in [
        "relative_position_bias_table",
        "rel_pos_h",
        "weight",
        "rotary_pos_emb",
        "pose",
        "cls_token",
    ]:
        assert find_absolute_embeddings(module_with(**{name: torch.zeros(4)}), GRIDS) == (), name


def test_position_embedding_layer_is_recognized_by_its_name():
    assert find_absolute_embeddings(module_with(position_embedding=nn.Embedding(16, 4)), ()) == (
        "stem.position_embedding.weight",
    )


def test_absolute_embeddings_are_recognized_by_shape():
    for shape in [(1, 16, 4), (1, 4, 3, 5), (1, 3, 5, 4)]:
        assert find_absolute_embeddings(module_with(places=torch.zeros(shape)), GRIDS) == (
            "stem.places",
        ), shape


def test_tensors_of_other_shapes_are_not_absolute_embeddings():
    for shape in [(16, 4), (2, 16, 4), (1, 4, 5, 3), (4, 4, 3, 5)]:
        assert find_absolute_embeddings(module_with(places=torch.zeros(shape)), GRIDS) == (), shape


def test_buffers_can_be_absolute_embeddings():
    module = nn.Module()
    module.register_buffer("places", torch.zeros(1, 16, 4))
    assert find_absolute_embeddings(module, GRIDS) == ("places",)


def test_absolute_position_module_is_recognized_by_its_class():
    model = Performer(4, 1, 3, dim=8, depth=1, heads=2, position="absolute")
    assert find_absolute_embeddings(model, ()) == ("absolute_position",)
    assert (
        find_absolute_embeddings(Performer(4, 1, 3, dim=8, depth=2, heads=2, position="rotary"), ())
        == ()
    )
