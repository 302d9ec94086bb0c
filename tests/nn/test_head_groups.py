from typing import Any

import pytest
import torch
from torch import Tensor, nn

from teka import Grid
from teka.functional import RELATIVES
from teka.nn import Attention, LearnedRelativeKernel
from teka.nn.head_groups import count_position_heads

GRID = Grid((3, 5))
BY_POSITION = [name for name in RELATIVES if name not in ("rotary", "rotation_joint")]


def build(heads: int = 3, **options: Any) -> Attention:
    """Return a layer in float64 whose output shows its heads."""
    torch.manual_seed(0)
    options = {"relative": None, **options}
    layer = Attention(4 * heads, heads, **options).double().eval()
    layer.output = nn.Linear(4 * heads, 4 * heads, bias=False).double()
    nn.init.eye_(layer.output.weight)
    for name, parameter in layer.named_parameters():
        if name in ("relative.distance_embedding", "relative.embedding", "relative.tables"):
            nn.init.normal_(parameter)
    return layer


def draw_tokens(dim: int, seed: int = 1) -> Tensor:
    return torch.randn(
        2, 15, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def change_by_head(output: Tensor, expected: Tensor) -> Tensor:
    return (output - expected).abs().unflatten(-1, (-1, 4)).amax(dim=(0, 1, 3))


@pytest.mark.parametrize("relative", BY_POSITION)
def test_last_heads_attend_by_position(relative: str):
    tokens, order = draw_tokens(20), torch.randperm(15, generator=torch.Generator().manual_seed(2))
    for position_heads in (1, 2, 4):
        layer = build(5, relative=relative, position_heads=position_heads)
        assert (layer.content_heads, layer.position_heads) == (5 - position_heads, position_heads)
        change = change_by_head(layer(tokens[:, order], GRID), layer(tokens, GRID)[:, order])
        assert (change[: layer.content_heads] < 1e-10).all(), position_heads
        assert (change[layer.content_heads :] > 1e-3).all(), position_heads


@pytest.mark.parametrize(
    "relative", [name for name in BY_POSITION if not RELATIVES[name].uses_query]
)
def test_position_heads_do_not_depend_on_queries_and_keys(relative: str):
    layer, tokens, others = (
        build(relative=relative, position_heads=1),
        draw_tokens(12),
        draw_tokens(12, seed=2),
    )
    # Values are an affine function of the tokens, and a mean with fixed weights is linear.
    middle = layer((tokens + others) / 2, GRID)
    change = change_by_head(middle, (layer(tokens, GRID) + layer(others, GRID)) / 2)
    assert change[2] < 1e-12
    assert (change[:2] > 1e-3).all()


def test_rings_depend_on_the_query():
    shared = build(relative="clipped", position_heads=0)
    assert shared.query is not None
    assert shared.query.out_features == 12
    separate = build(relative="clipped", position_heads=2, kernel="constant")
    assert separate.query is not None
    assert separate.query.out_features == 8
    assert separate.key is None
    for layer, heads in ((shared, slice(0, 3)), (separate, slice(1, 3))):
        tokens = draw_tokens(12)
        with torch.no_grad():
            before = layer(tokens, GRID)
            assert layer.query is not None
            layer.query.weight.add_(torch.randn_like(layer.query.weight))
            assert (change_by_head(layer(tokens, GRID), before)[heads] > 1e-4).all()


def test_named_kernel_has_parameters_for_its_heads():
    for relative in BY_POSITION:
        layer = build(5, relative=relative, position_heads=2)
        assert layer.relative is not None
        for name, parameter in layer.relative.named_parameters():
            # Heads share the frequencies of rotation and the embeddings of rings.
            assert (
                relative.startswith("clipped") or name == "frequency" or parameter.shape[0] == 2
            ), relative


def test_module_needs_the_number_of_its_heads():
    fits, too_many = (
        LearnedRelativeKernel("rotation", num_axes=2, heads=2, dim_head=4),
        LearnedRelativeKernel("rotation", num_axes=2, heads=3, dim_head=4),
    )
    tokens = draw_tokens(12)
    assert build(relative=fits, position_heads=2)(tokens, GRID).shape == tokens.shape
    layer = build(relative=too_many, position_heads=2)
    with pytest.raises(ValueError, match=r"relative\.cosine_weight must have .*got \(3, 2, 4\)"):
        layer(tokens, GRID)


def test_default_number_of_position_heads():
    for relative in (None, *RELATIVES):
        expected = 2 if relative is not None and relative.startswith("clipped") else 0
        assert count_position_heads(None, relative, 5) == expected, relative


def test_default_number_of_position_heads_can_be_explicit():
    tokens = draw_tokens(12)
    for relative, habit in (("clipped", 1), ("fourier", 0), ("rotary", 0), (None, 0)):
        default, explicit = (
            build(relative=relative, position_heads=number) for number in (None, habit)
        )
        assert torch.equal(default(tokens, GRID), explicit(tokens, GRID))


@pytest.mark.parametrize(
    ("backend", "relative", "content"),
    [
        ("linear", "fourier", "linear"),
        ("dense", "fourier", "dense"),
        ("toeplitz", "rotation", "auto"),
        ("rings", "clipped", "auto"),
    ],
)
def test_named_backend_computes_position_heads(backend: str, relative: str, content: str):
    layer = build(relative=relative, position_heads=1, backend=backend)
    assert [group.backend for group in layer.head_groups()] == [content, backend]
    tokens = draw_tokens(12)
    expected = layer(tokens, GRID)
    layer.backend = "dense"
    assert torch.allclose(layer(tokens, GRID), expected, atol=1e-12)


def test_wrong_number_of_position_heads_is_an_error(unchecked_annotations: None):
    bad: list[tuple[int, Any, str]] = [
        (1, None, "position_heads must be None or 0 without a relative kernel.*got 1"),
        (1, "rotary", "position_heads must be None or 0 with relative='rotary'.*got 1"),
        (
            1,
            LearnedRelativeKernel("rotary", num_axes=2, heads=3, num_pairs=2),
            "position_heads must be None or 0 with relative=LearnedRelativeKernel.*got 1",
        ),
        (2, "rotation_joint", "position_heads must be None or 0 with relative=.*got 2"),
        (3, "fourier", "position_heads must be at most 2, got 3"),
        (
            -1,
            LearnedRelativeKernel("clipped", dim_head=4),
            "position_heads must be at least 0.*got -1",
        ),
        (0, "fuorier", "Did you mean 'fourier'"),
    ]
    for position_heads, relative, message in bad:
        with pytest.raises(ValueError, match=message):
            count_position_heads(position_heads, relative, 3)


@pytest.mark.parametrize("change", ["hook", "forward"])
def test_projection_hooks_are_called(change: str, monkeypatch: pytest.MonkeyPatch):
    layer, called = Attention(8, 2), []
    assert layer.query is not None
    if change == "hook":
        layer.query.register_full_backward_hook(lambda *_: called.append(1))
    else:
        forward = layer.query.forward
        monkeypatch.setattr(
            layer.query, "forward", lambda tokens: called.append(1) or forward(tokens)
        )
    layer(torch.randn(2, 15, 8), GRID).sum().backward()
    assert called
