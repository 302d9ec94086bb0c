"""Kernels of the query and the signed offset: the papers' formulae, term by term."""

import torch
from torch import Tensor

from teka import Grid
from teka.functional import Shaw, SinusoidalBias, TransformerXLBias, attention
from tests.contracts.cases import draw_inputs, relative_error

SCALE = 5**-0.5


def softmax_of(scores: Tensor, value: Tensor) -> Tensor:
    return torch.softmax(scores, dim=-1) @ value


def test_shaw_equals_paper_on_a_line():
    query, key, value = draw_inputs(11)
    papers = torch.randn(
        7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )  # w_{−3} … w_3
    place = torch.arange(11)
    embedding = papers[(place[None, :] - place[:, None]).clamp(-3, 3) + 3]  # of (query, key)
    scores = SCALE * (query[:, :, :, None] * (key[:, :, None] + embedding)).sum(-1)
    ours = attention(query, key, value, relative=Shaw(papers.flip(0)[None]), grid=Grid(11))
    assert relative_error(ours, softmax_of(scores, value)) < 1e-12


def test_shaw_depends_on_the_sign_of_offsets():
    query = torch.ones(1, 1, 2, dtype=torch.float64).expand(1, 1, 9, 2)
    value = torch.eye(9, dtype=torch.float64)[None, None]
    embedding = torch.zeros(2, 3, 2, dtype=torch.float64)
    embedding[0, 0] = embedding[1, 2] = 20.0  # a key one row further down, one column further left
    weights = attention(query, 0 * query, value, relative=Shaw(embedding), grid=Grid((3, 3)))
    assert weights[0, 0, 4].argmax() == 6  # of the middle one: the lower left


def test_transformer_xl_equals_paper():
    query, key, value = draw_inputs(13)
    generator = torch.Generator().manual_seed(1)
    frequency = torch.tensor([1.0, 0.3, 0.01], dtype=torch.float64)
    matrix, u, v = (
        torch.randn(3, *size, dtype=torch.float64, generator=generator)
        for size in ((6, 5), (1, 5), (1, 5))
    )
    angle = (torch.arange(13.0)[:, None] - torch.arange(13.0)).double()[..., None] * frequency
    encoding = (
        torch.cat([torch.cos(angle), torch.sin(angle)], dim=-1) @ matrix[:, None]
    )  # W r of (head, query, key)
    content, by_place = query @ key.mT, (query[:, :, :, None] * encoding).sum(-1)
    scores = SCALE * (content + by_place + u @ key.mT + (v[:, :, None] * encoding).sum(-1))
    bias = (matrix @ (v - u).mT)[..., 0]  # the query that comes in has u already
    relative = TransformerXLBias(frequency[:, None], matrix[:, :, None], bias[..., None])
    ours = attention(query + u, key, value, relative=relative, grid=Grid(13))
    assert relative_error(ours, softmax_of(scores, value)) < 1e-12


def test_transformer_xl_without_query_equals_rotation():
    inputs = draw_inputs(15)
    generator = torch.Generator().manual_seed(1)
    rotation = SinusoidalBias.make_random_example(
        generator, heads=3, dim=5, num_axes=2, kernel="softmax"
    )
    weights = (
        torch.cat([rotation.cosine_weight, rotation.sine_weight], dim=-1).mT
        * rotation.scale
        / SCALE
    )
    frequency = rotation.frequency[:, None].expand(-1, 2)
    same = TransformerXLBias(frequency, weights.new_zeros(*weights.shape, 5), weights)
    output, expected = (
        attention(*inputs, relative=kernel, grid=Grid((3, 5))) for kernel in (same, rotation)
    )
    assert relative_error(output, expected) < 1e-12
