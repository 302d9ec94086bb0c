import pytest
import torch
from tests.convert.convolutions import draw_convolution, draw_images, largest_difference

from teka import Grid
from teka.convert import attention_from_convolution, low_rank_convolution
from teka.convert.convolutions import factor_matrices, offset_matrices

EPSILON = torch.finfo(torch.float64).eps


@pytest.mark.parametrize("dim_head", [3, 4, 5, 6])
def test_the_factors_multiply_to_the_matrices(dim_head: int):
    matrices = offset_matrices(draw_convolution(2, 3, (6, 3)))
    for one in (matrices, matrices.mT):
        values, outputs = factor_matrices(one, dim_head, epsilon=EPSILON)
        assert values.shape[1] == outputs.shape[2] <= dim_head
        assert torch.equal(outputs @ values, one)


def test_a_matrix_of_low_rank_is_parted_into_factors_of_equal_size():
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(*shape, dtype=torch.float64, generator=generator) for shape in ((9, 7, 2), (9, 2, 5)))
    values, outputs = factor_matrices(left @ right, 2, epsilon=EPSILON)
    assert largest_difference(outputs @ values, left @ right) < 1e-13
    assert torch.allclose(values.flatten(1).norm(dim=1), outputs.flatten(1).norm(dim=1))
    with pytest.raises(ValueError, match="dim_head is 1, expected at least 2, the rank of the weights at offset"):
        factor_matrices(left @ right, 1, epsilon=EPSILON)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rank", [1, 3, 5])
def test_the_nearest_convolution_fits_heads_of_its_rank_and_its_error_is_that_of_white_inputs(
    rank: int, dtype: torch.dtype
):
    convolution = draw_convolution(2, 3, (5, 7), dtype=dtype, bias=False)
    nearest, error = low_rank_convolution(convolution, rank)
    layer = attention_from_convolution(nearest, dim_head=rank)
    images, grid = torch.randn(8, 5, 24, 24, dtype=dtype, generator=torch.Generator().manual_seed(0)), Grid((24, 24))
    with torch.no_grad():
        truth = convolution(images)
        found = grid.unflatten(layer(grid.flatten(images), grid))
        assert largest_difference(found, nearest(images)) <= 100 * torch.finfo(dtype).eps
    assert float((found - truth).norm() / truth.norm()) == pytest.approx(error, rel=0.05, abs=1e-6)


def test_no_rank_one_matrices_found_by_descent_are_nearer():
    convolution = draw_convolution(1, 3, (4, 5))
    _, error = low_rank_convolution(convolution, 1)
    matrices = offset_matrices(convolution)
    torch.manual_seed(0)
    left, right = (torch.randn(3, size, dtype=torch.float64, requires_grad=True) for size in (5, 4))
    optimizer = torch.optim.Adam([left, right], 0.05)
    distance = torch.ones(())
    for _ in range(300):
        distance = (matrices - left[:, :, None] * right[:, None]).norm() / matrices.norm()
        optimizer.zero_grad()
        distance.backward()
        optimizer.step()
        assert distance.item() >= error - 1e-12
    assert distance.item() == pytest.approx(error, abs=1e-3)


def test_the_convolution_given_stays_as_it_is_and_a_full_rank_changes_nothing():
    convolution, images = draw_convolution(2, 3), draw_images(2)
    before = convolution.weight.detach().clone()
    nearest, error = low_rank_convolution(convolution, 3)
    assert error == 0.0
    low_rank_convolution(convolution, 1)
    assert torch.equal(convolution.weight, before)
    with torch.no_grad():
        assert largest_difference(nearest(images), convolution(images)) < 1e-14


def test_weights_of_0_have_no_error():
    convolution = draw_convolution(1, 3)
    torch.nn.init.zeros_(convolution.weight)
    assert low_rank_convolution(convolution, 1)[1] == 0.0
    assert attention_from_convolution(convolution, dim_head=1).attention.dim_head == 1


def test_a_rank_below_one_is_refused():
    with pytest.raises(ValueError, match="rank is 0, expected at least 1"):
        low_rank_convolution(draw_convolution(1, 3), 0)
