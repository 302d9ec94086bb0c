"""Relative kernels with learned parameters: initial values, results and errors."""

import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import Parameter
from torch.optim.swa_utils import AveragedModel

from teka import functional
from teka.functional import RELATIVES, Softmax, default_num_features
from teka.functional.relative.rotary import ROTARY_NORMALIZERS
from teka.nn import Attention, AttentionOptions, EmbeddedBiasTable, LearnedRelativeKernel
from teka.nn.head_groups import make_relative_kernel
from teka.nn.relative import find_relative_kernel_class
from tests.contracts.cases import with_leaves


def make(relative: Any, features: int = 5, num_waves: int | None = None) -> Any:
    options = AttentionOptions(relative=relative, num_waves=num_waves)
    return make_relative_kernel(options, heads=3, dim_head=5, num_features=features)


@pytest.mark.parametrize("name", RELATIVES)
def test_every_relative_kernel_has_a_module_with_a_state_dict(name: str):
    module, other = make(name), make(name)
    assert RELATIVES[name] is find_relative_kernel_class(name) is find_relative_kernel_class(module)
    assert type(module()) is RELATIVES[name]
    module().check_kernel_and_positions(heads=3, dim=5, num_axes=2, kernel=Softmax())
    other.load_state_dict(module.state_dict())
    assert all("." not in key or key.startswith("random_features.") for key in module.state_dict())
    leaves, others = (with_leaves(kernel)[1] for kernel in (module(), other()))
    assert all(torch.equal(leaf, others[field]) for field, leaf in leaves.items())


@pytest.mark.parametrize(
    "name", ["rotation", "quadratic", "generalized_quadratic", "fourier", "table"]
)
def test_every_parameter_has_a_gradient(name: str):
    module = make(name)
    offsets = torch.cartesian_prod(*[torch.arange(-8.0, 9.0)] * 2)
    (module().log_weight_at(offsets) * torch.randn(len(offsets))).sum().backward()
    assert all(
        parameter.grad is not None and parameter.grad.all() for parameter in module.parameters()
    )


def test_frequencies_of_rotary_have_a_gradient():
    module = LearnedRelativeKernel("rotary", num_axes=2, heads=3, num_pairs=2)
    features, positions = torch.randn(1, 3, 7, 5), torch.randn(7, 2)
    (module().rotate(features, positions) * features).sum().backward()
    assert module.frequency.grad is not None
    assert module.frequency.grad.all()


def test_rotary_rotates_all_pairs_of_features():
    assert make("rotary", features=9).frequency.shape == (3, 4, 2)
    with pytest.raises(
        ValueError, match=r"the number of features of kernel must be at least 2.*got 1"
    ):
        make("rotary", features=1)


def test_num_waves_needs_a_named_kernel_with_waves():
    assert make("fourier", num_waves=7).frequency.shape == (3, 7, 2)
    for relative in (None, "rotation", LearnedRelativeKernel("fourier", num_axes=2, heads=3)):
        with pytest.raises(ValueError, match=r"num_waves must be None with relative=.*got 7"):
            make(relative, num_waves=7)


def test_module_and_none_are_returned_unchanged():
    module = LearnedRelativeKernel("clipped", dim_head=5)
    assert make(module) is module
    assert make(None) is find_relative_kernel_class(None) is None


@pytest.mark.parametrize(
    ("relative", "message"),
    [("rotate", "Did you mean 'rotation'"), (3, "a name or a teka.nn.LearnedRelativeKernel")],
)
def test_other_types_are_not_relative_kernels(
    relative: Any, message: str, unchecked_annotations: None
):
    with pytest.raises(ValueError, match=message):
        make(relative)


def test_rotation_is_initialized_as_in_the_paper():
    torch.manual_seed(0)
    relative = LearnedRelativeKernel("rotation", num_axes=3, heads=50, dim_head=5)
    assert relative.frequency.tolist() == pytest.approx([1, 0.3536, 0.125, 0.0442], abs=1e-4)
    for weight in (relative.cosine_weight.detach(), relative.sine_weight.detach()):
        assert weight.shape == (50, 3, 4)
        assert float(weight.mean()) == pytest.approx(0, abs=0.15)
        assert float(weight.std()) == pytest.approx(1, abs=0.1)
    assert not torch.equal(relative.cosine_weight, relative.sine_weight)
    kernel = relative()
    for name in ("frequency", "cosine_weight", "sine_weight"):
        assert getattr(kernel, name) is getattr(relative, name)
    assert kernel.scale == pytest.approx(1 / math.sqrt(5 + 2 * 3 * 4))
    assert LearnedRelativeKernel(
        "rotation", num_axes=2, heads=3, dim_head=5, num_frequencies=2
    ).frequency.shape == (2,)


def test_frequencies_of_rotation_can_be_shared():
    frequency = Parameter(torch.tensor([1.0, 0.1, 0.01]))
    shared, separate = (
        LearnedRelativeKernel("rotation", num_axes=2, heads=3, dim_head=5, frequency=frequency)
        for _ in range(2)
    )
    assert shared.frequency is separate.frequency
    assert shared.cosine_weight.shape == (3, 2, 3)
    assert not torch.equal(shared.cosine_weight, separate.cosine_weight)


@pytest.mark.parametrize("weight_scale", [0.0, 0.1, 3.0])
def test_initial_weight_of_rotation_is_an_option(weight_scale: float):
    weights = []
    for scale in (1.0, weight_scale):
        torch.manual_seed(0)
        relative = LearnedRelativeKernel(
            "rotation", num_axes=2, heads=3, dim_head=5, weight_scale=scale
        )
        weights.append(torch.stack([relative.cosine_weight, relative.sine_weight]))
    assert torch.allclose(weights[1], weight_scale * weights[0])


def test_joint_rotation_reports_its_number_of_features():
    relative = LearnedRelativeKernel(
        "rotation_joint", num_axes=3, heads=2, dim_head=5, num_frequencies=4
    )
    assert relative().cosine_weight is relative.cosine_weight
    assert relative().num_position_features == relative.num_position_features == 2 * 3 * 4
    assert (
        LearnedRelativeKernel("rotation", num_axes=3, heads=2, dim_head=5).num_position_features
        == 0
    )


def test_clipped_is_initially_zero():
    assert torch.equal(
        LearnedRelativeKernel("clipped", dim_head=5).distance_embedding, torch.zeros(7, 5)
    )
    relative = LearnedRelativeKernel(
        "clipped_features", dim_head=5, max_distance=3, ring_width=0.5, num_features=7
    )
    kernel = relative()
    assert kernel.distance_embedding is relative.distance_embedding
    assert kernel.projection is relative.random_features.projection
    assert kernel.projection.shape == (7, 5)
    assert (kernel.max_distance, kernel.ring_width) == (3, 0.5)
    assert LearnedRelativeKernel(
        "clipped_features", dim_head=5
    ).random_features.num_features == default_num_features(5)


def test_gaussians_are_initialized_as_in_the_paper_and_stay_positive():
    torch.manual_seed(0)
    plain, general = (
        LearnedRelativeKernel("quadratic", num_axes=3, heads=500)(),
        LearnedRelativeKernel("generalized_quadratic", num_axes=3, heads=500)(),
    )
    for kernel in (plain, general):
        assert kernel.center.shape == (500, 3)
        assert float(kernel.center.detach().std()) == pytest.approx(2, abs=0.15)
        assert float(kernel.center.detach().mean()) == pytest.approx(0, abs=0.15)
    assert torch.allclose(plain.precision, torch.ones(500))
    assert torch.equal(general.precision_factor, torch.eye(3).expand(500, 3, 3))
    module = LearnedRelativeKernel("quadratic", num_axes=2, heads=3)
    torch.nn.init.constant_(module.raw_precision, -20.0)
    assert (module().precision > 0).all()


def test_table_is_initially_zero_and_embedded_table_differs_by_head():
    assert torch.equal(
        LearnedRelativeKernel("table", num_axes=2, heads=3)().tables, torch.zeros(3, 2, 15)
    )
    assert LearnedRelativeKernel("table", num_axes=2, heads=3, max_offset=4)().max_offset == 4
    torch.manual_seed(0)
    module = EmbeddedBiasTable(2, 50, max_offset=6, embedding_dim=40)
    tables = module().tables
    assert tables.shape == (50, 2, 13)
    assert float(tables.detach().var()) == pytest.approx(1 / 3, rel=0.15)
    for axis, (vectors, embedding) in enumerate(
        zip(module.head_vectors, module.embeddings, strict=True)
    ):
        expected = vectors.get_parameter("weight") @ embedding.get_parameter("weight").T
        torch.testing.assert_close(tables[:, axis], expected)
    tables.sum().backward()
    assert all(
        parameter.grad is not None and parameter.grad.any() for parameter in module.parameters()
    )


@pytest.mark.parametrize("num_axes", [1, 3])
def test_initial_wavelengths_are_log_uniform_from_2_to_64(num_axes: int):
    torch.manual_seed(0)
    kernel = LearnedRelativeKernel("fourier", num_axes=num_axes, heads=300, num_waves=5)()
    assert kernel.frequency.shape == (300, 5, num_axes)
    octaves = torch.log2(2 * math.pi / kernel.frequency.detach().norm(dim=-1))
    assert float(octaves.min()) == pytest.approx(1, abs=0.1)
    assert float(octaves.max()) == pytest.approx(6, abs=0.1)
    assert float(octaves.mean()) == pytest.approx(3.5, abs=0.1)


@pytest.mark.parametrize("num_waves", [1, 7])
def test_initial_waves_peak_at_the_query(num_waves: int):
    kernel = LearnedRelativeKernel("fourier", num_axes=2, heads=3, num_waves=num_waves)()
    assert torch.allclose(kernel.log_weight_at(torch.zeros(1, 2)).exp(), torch.full((3, 1), 3.0))
    elsewhere = kernel.log_weight_at(20 * torch.randn(200, 2)).exp().detach()
    assert float(elsewhere.min()) > 1 - 1e-5
    assert float(elsewhere.max()) < 3 + 1e-5


def test_initial_wavelength_and_weight_are_options():
    torch.manual_seed(0)
    kernel = LearnedRelativeKernel(
        "fourier",
        num_axes=2,
        heads=300,
        num_waves=5,
        longest_wave=16.0,
        shortest_wave=4.0,
        wave_weight=2.5,
    )()
    octaves = torch.log2(2 * math.pi / kernel.frequency.detach().norm(dim=-1))
    assert float(octaves.min()) == pytest.approx(2, abs=0.05)
    assert float(octaves.max()) == pytest.approx(4, abs=0.05)
    total = kernel.amplitude.sum(dim=-1) / kernel.constant_weight
    assert torch.allclose(total, torch.full_like(total, 2.5))
    length = (
        2
        * math.pi
        / LearnedRelativeKernel(
            "fourier", num_axes=2, heads=3, longest_wave=7.0, shortest_wave=7.0
        )().frequency.norm(dim=-1)
    )
    assert torch.allclose(length, torch.full_like(length, 7.0))


def test_initial_frequencies_of_rotary_are_geometric_in_random_directions():
    kernel = LearnedRelativeKernel("rotary", num_axes=3, heads=2, num_pairs=5, base=32.0)()
    assert kernel.frequency.shape == (2, 5, 3)
    assert torch.allclose(
        kernel.frequency.norm(dim=-1), torch.tensor([1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16]).expand(2, 5)
    )
    directions = kernel.frequency / kernel.frequency.norm(dim=-1, keepdim=True)
    assert not torch.allclose(directions[0, 0], directions[1, 0])
    assert not torch.allclose(directions[0, 0], directions[0, 1])


def test_rotary_normalizer_reaches_the_kernel():
    assert (
        LearnedRelativeKernel("rotary", num_axes=2, heads=3, num_pairs=2)().normalizer
        == ROTARY_NORMALIZERS[0]
    )
    kernel = LearnedRelativeKernel(
        "rotary", num_axes=2, heads=3, num_pairs=2, normalizer="mixed", length_share=0.2
    )()
    assert isinstance(kernel, functional.Rotary)
    assert (kernel.normalizer, kernel.length_share) == ("mixed", 0.2)


SIZES: dict[str, dict[str, int]] = {
    "rotation": {"num_axes": 2, "heads": 3, "dim_head": 5, "num_frequencies": 4},
    "clipped": {"dim_head": 5, "max_distance": 3},
    "clipped_features": {"dim_head": 5, "max_distance": 3, "num_features": 7},
    "quadratic": {"num_axes": 2, "heads": 3},
    "generalized_quadratic": {"num_axes": 2, "heads": 3},
    "table": {"num_axes": 2, "heads": 3, "max_offset": 3},
    "fourier": {"num_axes": 2, "heads": 3, "num_waves": 4},
    "rotary": {"num_axes": 2, "heads": 3, "num_pairs": 2},
}


def test_sizes_below_one_are_errors():
    for kernel, sizes in SIZES.items():
        for argument in sizes:
            with pytest.raises(ValueError, match=rf"{argument} must be .*got 0"):
                LearnedRelativeKernel(kernel, **{**sizes, argument: 0})


def test_wrong_arguments_of_relative_kernels_are_errors():
    bad: list[tuple[str, dict[str, Any], str]] = [
        ("clipped", {"ring_width": 0.0}, r"ring_width must be .*got 0.0"),
        (
            "fourier",
            {"shortest_wave": 0.0},
            "shortest_wave must be a positive finite number.*got 0.0",
        ),
        (
            "fourier",
            {"longest_wave": 1.0},
            "longest_wave must be finite and at least shortest_wave = 2.*got 1.0",
        ),
        ("fourier", {"longest_wave": math.inf}, "longest_wave must be finite.*got inf"),
        ("fourier", {"wave_weight": 0.0}, "wave_weight must be a positive finite number.*got 0.0"),
        (
            "fourier",
            {"wave_weight": math.nan},
            "wave_weight must be a positive finite number.*got nan",
        ),
        ("rotary", {"base": 0.0}, r"base must be .*got 0"),
        (
            "rotary",
            {"normalizer": "length"},
            "normalizer must be .*got 'length'.*Did you mean 'lengths'",
        ),
        (
            "rotation",
            {"frequency": Parameter(torch.ones(2, 2))},
            r"frequency must have shape \(scales,\).*got \(2, 2\)",
        ),
        *(
            (
                "rotation",
                {"weight_scale": size},
                f"weight_scale must be a finite number of at least 0.*got {size}",
            )
            for size in (-1.0, math.inf, math.nan)
        ),
    ]
    for kernel, options, message in bad:
        with pytest.raises(ValueError, match=message):
            LearnedRelativeKernel(kernel, **SIZES[kernel], **options)


@pytest.mark.parametrize("relative", sorted(set(RELATIVES) - {"rotation_joint"}))
def test_number_of_axes_is_inferred_from_the_first_grid(relative: str):
    torch.manual_seed(0)
    layer = Attention(8, 2, kernel="positive", relative=relative)
    parameters = list(layer.parameters())
    tokens = torch.randn(2, 7, 8)
    output = layer(tokens, 7)
    assert [id(parameter) for parameter in layer.parameters()] == [
        id(parameter) for parameter in parameters
    ]
    loaded = Attention(8, 2, kernel="positive", relative=relative)
    loaded.load_state_dict(layer.state_dict())
    assert torch.equal(loaded(tokens, 7), output)


def test_second_grid_with_another_number_of_axes_is_an_error():
    layer = Attention(8, 2)
    layer(torch.randn(1, 6, 8), (2, 3))
    with pytest.raises(ValueError, match=r"number of axes of grid or positions must be 2.*got 1"):
        layer(torch.randn(1, 6, 8), 6)


def test_inferring_the_axes_changes_no_random_state():
    layer = Attention(8, 2)
    state = torch.get_rng_state()
    layer(torch.zeros(1, 6, 8), 6)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_transform_does_not_infer_the_axes():
    layer, tokens = Attention(8, 2), torch.randn(3, 6, 8)
    parameters = dict(layer.named_parameters())

    def loss(values, sample):
        return torch.func.functional_call(layer, values, (sample[None], 6)).square().sum()

    gradients = torch.func.vmap(torch.func.grad(loss), (None, 0))
    for _ in range(2):
        with pytest.raises(ValueError, match=r"got 1\. Make the layer with num_axes=1\."):
            gradients(parameters, tokens)
    layer(tokens, 6)
    assert gradients(parameters, tokens)["query.weight"].shape == (3, 8, 8)


def test_parameters_in_an_autograd_graph_keep_their_axes():
    layer, tokens = Attention(8, 2), torch.randn(3, 6, 8)
    assert layer.relative is not None
    penalty = layer.relative.frequency.square().sum()  # DistributedDataParallel keeps a graph, too
    with pytest.raises(ValueError, match=r"got 1\. Make the layer with num_axes=1\."):
        layer(tokens, 6)
    del penalty
    with torch.inference_mode():
        assert layer(tokens, 6).shape == tokens.shape
    (layer(tokens, 6).sum() + layer.relative.frequency.sum()).backward()


def test_parameters_with_a_parametrization_keep_their_axes():
    layer = Attention(8, 2)
    assert layer.relative is not None
    torch.nn.utils.parametrize.register_parametrization(
        layer.relative, "frequency", torch.nn.Identity()
    )
    with pytest.raises(ValueError, match=r"got 1\. Make the layer with num_axes=1\."):
        layer(torch.randn(3, 6, 8), 6)


def test_parameters_of_a_moving_average_keep_their_axes():
    layer, tokens = Attention(8, 2), torch.randn(3, 6, 8)
    average = AveragedModel(layer)
    optimizer = torch.optim.SGD(layer.parameters(), 0.01)
    for _ in range(2):
        layer(tokens, 6).square().mean().backward()
        optimizer.step()
        average.update_parameters(layer)
    with pytest.raises(ValueError, match=r"got 1\. Make the layer with num_axes=1\."):
        average(tokens, 6)  # otherwise, it would have new initial parameters
    loaded = pickle.loads(pickle.dumps(Attention(8, 2)))
    assert loaded(tokens, 6).shape == tokens.shape


def test_sharded_parameters_keep_their_axes(tmp_path: Path):
    place = tmp_path / "store"
    distributed.init_process_group("gloo", init_method=f"file://{place}", rank=0, world_size=1)
    try:
        layer, tokens = Attention(8, 2), torch.randn(3, 6, 8)
        fully_shard(layer, mesh=init_device_mesh("cpu", (1,)))
        with pytest.raises(ValueError, match=r"got 1\. Make the layer with num_axes=1\."):
            layer.chosen_backend(6)
        with pytest.raises(ValueError, match=r"got 1\. Make the layer with num_axes=1\."):
            layer(tokens, 6)
        assert layer(tokens, (2, 3)).shape == tokens.shape
    finally:
        distributed.destroy_process_group()
