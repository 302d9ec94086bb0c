import numpy as np
import pytest
import torch

from teka.models import SelfAttentionNetwork
from teka.training.heads.attention_maps import attention_maps, attention_weights
from teka.training.heads.measure import heads_of, middle_query

SIZE = (10, 14)


def network(**options):
    torch.manual_seed(0)
    return SelfAttentionNetwork(SIZE, 1, 3, **{"dim": 6, "depth": 2, "heads": (3, 2), **options}).eval()


@pytest.fixture
def images():
    return torch.rand(23, 1, *SIZE, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("encoding", ["quadratic", "generalized_quadratic", "table"])
def test_without_content_the_maps_are_the_heads_attention_by_position(images, encoding):
    model = network(encoding=encoding)
    query = middle_query(model.grid)
    maps = attention_maps(model, images, query)
    assert [one.shape for one in maps] == [(3, 5, 7), (2, 5, 7)]
    heads = heads_of(model)
    flat = np.concatenate([one.reshape(len(one), -1) for one in maps])
    np.testing.assert_allclose(flat.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(flat.max(axis=1), heads.weight.numpy(), rtol=1e-4)
    rows, columns = np.divmod(flat.argmax(axis=1), 7)
    assert np.stack([rows - query[0], columns - query[1]], axis=-1).tolist() == heads.offset.tolist()


def test_with_content_they_are_the_mean_over_the_images(images):
    model = network(content="softmax", encoding="table")
    together = attention_maps(model, images, (4, 1))
    alone = [attention_maps(model, image[None], (4, 1)) for image in images]
    for layer, weights in enumerate(together):
        np.testing.assert_allclose(weights, np.mean([one[layer] for one in alone], axis=0), atol=1e-6)
        np.testing.assert_allclose(weights.sum(axis=(1, 2)), 1, rtol=1e-5)
    assert np.abs(alone[0][0] - alone[1][0]).max() > 1e-4


def test_weights_and_values_give_the_layers_output(images):
    model = network(content="softmax", encoding="table")
    layer, tokens = model.attentions()[0], torch.randn(2, 35, 6)
    with torch.no_grad():
        weights = attention_weights(layer, tokens, model.grid)
        mixed = torch.einsum("bhij,bjd->bihd", weights, tokens)
        torch.testing.assert_close(layer.output(mixed.flatten(2)), layer(tokens, model.grid))


def test_the_model_is_left_without_hooks(images):
    model = network()
    attention_maps(model, images, (0, 0))
    assert not any(layer._forward_pre_hooks for layer in model.attentions())


@pytest.mark.parametrize("query", [(5, 0), (0, 7), (-1, 0)])
def test_a_query_off_the_grid_is_refused(images, query):
    with pytest.raises(ValueError, match=r"query is .* expected a row from 0 to 4 and a column from 0 to 6"):
        attention_maps(network(), images, query)


def test_no_image_is_refused(images):
    with pytest.raises(ValueError, match="images is 0"):
        attention_maps(network(), images[:0], (0, 0))
