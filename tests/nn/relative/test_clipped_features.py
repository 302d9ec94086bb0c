import pytest

from teka import functional
from teka.functional import default_num_features
from teka.nn import ClippedFeatures


def test_it_gives_the_kernel_with_its_parameters_and_its_projection():
    relative = ClippedFeatures(5, max_distance=3, ring_width=0.5, num_features=7)
    kernel = relative()
    assert isinstance(kernel, functional.ClippedFeatures)
    assert kernel.distance_embedding is relative.distance_embedding
    assert kernel.projection is relative.random_features.projection
    assert relative.random_features.projection.shape == (7, 5)
    assert (kernel.max_distance, kernel.ring_width) == (3, 0.5)


def test_the_default_number_of_features_is_that_of_the_size():
    assert ClippedFeatures(16).random_features.projection.shape == (default_num_features(16), 16)


def test_fewer_than_one_feature_is_refused():
    with pytest.raises(ValueError, match="num_features is 0"):
        ClippedFeatures(5, num_features=0)
