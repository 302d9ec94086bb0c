import pytest

from teka.audit.layers.localize import LayerBreak, LayerFinding, LayerFindings, error_limit
from teka.audit.movement import Movement


def make_finding(name, added=None, noise=0.0):
    return LayerFinding(
        name=name,
        kind="Conv2d",
        layout="map",
        grid=(5, 7),
        stride=(2, 1.5),
        prefix_tokens=0,
        interior_error=0.25,
        border_error=None,
        aliasing_error=0.5,
        noise=noise,
        added=added,
        error=0.25,
        border=((1, 1), (2, 0)),
        errors=(0.25, None),
    )


def findings(*layers, threshold=1e-4):
    return LayerFindings(
        findings=layers,
        threshold=threshold,
        absolute_embeddings=("a.pos_embed",),
        skipped={"b": "it was not called"},
        breaks={"interior": LayerBreak("interior", "a", "Conv2d", 0.25, 1e-4, ("b", "c"))},
        shifts=((0, 1), (2, 0.5)),
        movement=Movement("zero", 0.5),
        num_images=4,
        seen_size=(10, 11),
    )


def test_limit_is_the_threshold_or_ten_times_the_noise():
    assert error_limit(1e-4, noise=1e-6) == 1e-4
    assert error_limit(1e-4, noise=1e-3) == pytest.approx(1e-2)


def test_largest_added_errors_are_sorted_without_small_or_unknown():
    layers = (
        make_finding("a", 0.1),
        make_finding("b", 0.3),
        make_finding("c", 1e-5),
        make_finding("d"),
        make_finding("e", 0.2, noise=0.1),
    )
    assert [layer.name for layer in findings(*layers).largest_increases()] == ["b", "a"]
    assert [layer.name for layer in findings(*layers).largest_increases(1)] == ["b"]


def test_module_is_left_out_if_a_submodule_explains_half_of_its_error():
    layers = (
        make_finding("stem.0", 0.2),
        make_finding("stem", 0.3),
        make_finding("stems", 0.1),
        make_finding("(model)", 0.3),
    )
    assert [layer.name for layer in findings(*layers).largest_increases()] == ["stem.0", "stems"]
    layers = (make_finding("stem.0", 0.1), make_finding("stem", 0.3))
    assert [layer.name for layer in findings(*layers).largest_increases()] == ["stem", "stem.0"]
