import pytest
import torch

from teka import Grid, on
from teka.functional import attention
from teka.nn import AttentionHeads

DIM, HEADS = 8, 2
KERNEL_PAIRS = [
    ("squared_relu", "rotary"),
    ("softmax", None),
    ("positive", "alibi"),
    ("relu", "fourier"),
    ("softmax", "t5"),
]


def draw(num_tokens: int, batch: int = 2) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(num_tokens)
    return torch.randn(
        3, batch, HEADS, num_tokens, DIM, generator=generator, dtype=torch.float64
    ).unbind()


def make_heads(kernel: str, relative: str | None, **options) -> AttentionHeads:
    torch.manual_seed(0)
    return AttentionHeads(DIM, HEADS, kernel=kernel, relative=relative, **options).double()


@pytest.mark.parametrize(("kernel", "relative"), KERNEL_PAIRS)
def test_heads_equal_functional_attention(kernel: str, relative: str | None):
    heads = make_heads(kernel, relative)
    keep = torch.arange(11) < torch.tensor([[11], [7]])
    kernels = dict(zip(("kernel", "relative"), heads.current_kernels(), strict=True))
    expected = attention(*draw(11), grid=Grid(11), key_mask=keep, scale=0.2, **kernels)
    assert torch.equal(heads(*draw(11), key_mask=keep, scale=0.2), expected)


@pytest.mark.parametrize(("kernel", "relative"), KERNEL_PAIRS)
@pytest.mark.parametrize("last", [1, 4])
@pytest.mark.parametrize(
    "options", [{}, {"grid": Grid(9), "num_prefix_tokens": 2}, {"num_prefix_tokens": 2}]
)
def test_fewer_causal_queries_than_keys_are_the_last_tokens(
    kernel: str, relative: str | None, last: int, options: dict
):
    heads, (query, key, value) = make_heads(kernel, relative, **options), draw(11)
    whole = heads(query, key, value, is_causal=True)
    output = heads(query[:, :, -last:], key, value, is_causal=True)
    torch.testing.assert_close(output, whole[:, :, -last:], rtol=1e-10, atol=1e-10)


def test_more_causal_queries_than_keys_are_an_error():
    query, key, value = draw(11)
    with pytest.raises(ValueError, match="11 tokens, the same number as query"):
        make_heads("softmax", None)(query, key[:, :, :7], value[:, :, :7], is_causal=True)


def test_num_prefix_tokens_applies_with_and_without_a_grid():
    for options, grid in (({}, Grid(9)), ({"grid": Grid((3, 3))}, Grid((3, 3)))):
        heads, plain = (
            make_heads("squared_relu", "rotary", **options),
            make_heads("squared_relu", "rotary", **options),
        )
        expected = heads(*draw(11), grid, num_prefix_tokens=2)
        assert torch.equal(heads(*draw(11), num_prefix_tokens=2), expected)
        plain.num_prefix_tokens = 2
        assert torch.equal(plain(*draw(11)), expected)
        query, key, value = draw(11)
        with pytest.raises(ValueError, match=r"num_prefix_tokens must be 0 to decode.*got 2"):
            plain.step(query, key, value)


def test_argument_takes_precedence_over_context_and_layer():
    grids = [Grid((3, 4)), Grid((4, 3)), Grid((2, 6))]
    heads = make_heads("squared_relu", "rotary", grid=grids[0])
    outputs = [heads(*draw(12))]
    with on(grids[1]):
        outputs += [heads(*draw(12)), heads(*draw(12), grids[2])]
        with on(Grid((3, 3)), num_prefix_tokens=3):
            prefixed = heads(*draw(12))
    for grid, output in zip(grids, outputs, strict=True):
        assert torch.equal(output, heads(*draw(12), grid))
    assert torch.equal(prefixed, heads(*draw(12), Grid((3, 3)), num_prefix_tokens=3))
    assert torch.equal(heads(*draw(12)), outputs[0])


def test_heads_with_two_axes_need_a_grid():
    with pytest.raises(ValueError, match=r"grid must be a teka.Grid of 2 axes.*got None"):
        make_heads("squared_relu", "rotary", num_axes=2)(*draw(12))
