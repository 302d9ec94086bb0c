from fractions import Fraction

import pytest
import torch
from torch import nn

from teka.audit.layers.layout import Layout
from teka.audit.layers.position_parameters import absolute_embeddings, class_tokens
from teka.models import Performer

STRIDE = (Fraction(4), Fraction(4))
LAYOUTS = (Layout("map", (3, 5), STRIDE), Layout("tokens", (3, 5), STRIDE, 1))


def owner(**tensors):
    module = nn.Module()
    for name, tensor in tensors.items():
        setattr(module, name, tensor if isinstance(tensor, nn.Module) else nn.Parameter(tensor))
    return nn.ModuleDict({"stem": module})


ABSOLUTE = ("pos_embed", "position_embeddings", "positional_embedding", "pos_embedding", "pos_enc", "pos_emb", "pe")


@pytest.mark.parametrize("name", [*ABSOLUTE, "absolute_pos_embed", "pos_embed_y", "positional_encoding"])
def test_absolute_embeddings_are_known_by_name(name):
    assert absolute_embeddings(owner(**{name: torch.zeros(4)}), ()) == (f"stem.{name}",)


@pytest.mark.parametrize("name", ["relative_position_bias_table", "rel_pos_h", "weight", "rotary_pos_emb", "pose"])
def test_relative_ones_and_others_are_not(name):
    assert absolute_embeddings(owner(**{name: torch.zeros(4)}), LAYOUTS) == ()


def test_an_embedding_layer_is_known_by_the_name_of_the_layer():
    assert absolute_embeddings(owner(position_embedding=nn.Embedding(16, 4)), ()) == ("stem.position_embedding.weight",)


@pytest.mark.parametrize("shape", [(1, 16, 4), (1, 4, 3, 5), (1, 3, 5, 4)])
def test_absolute_embeddings_are_known_by_shape(shape):
    assert absolute_embeddings(owner(places=torch.zeros(shape)), LAYOUTS) == ("stem.places",)


@pytest.mark.parametrize("shape", [(16, 4), (2, 16, 4), (1, 4, 5, 3), (4, 4, 3, 5)])
def test_other_shapes_are_not(shape):
    assert absolute_embeddings(owner(places=torch.zeros(shape)), LAYOUTS) == ()


def test_buffers_count_too():
    module = nn.Module()
    module.register_buffer("places", torch.zeros(1, 16, 4))
    assert absolute_embeddings(module, LAYOUTS) == ("places",)


def test_a_module_that_computes_positions_is_known_by_its_class():
    model = Performer(4, 1, 3, dim=8, depth=1, heads=2, position="absolute")
    assert absolute_embeddings(model, ()) == ("absolute_position",)
    assert absolute_embeddings(Performer(4, 1, 3, dim=8, depth=2, heads=2, position="rotary"), ()) == ()


@pytest.mark.parametrize("name", ["cls_token", "class_token", "class_embedding", "dist_token", "distillation_token"])
def test_class_tokens_are_known_by_name(name):
    assert class_tokens(owner(**{name: torch.zeros(4)}, weight=torch.zeros(4))) == (f"stem.{name}",)


def test_register_tokens_are_class_tokens_and_mask_tokens_are_not():
    assert class_tokens(owner(register_tokens=torch.zeros(1, 2, 4), mask_token=torch.zeros(4))) == (
        "stem.register_tokens",
    )
