import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import teka
from teka import Grid
from teka.functional.attention_plan import AttentionPlan
from teka.nn import Attention
from teka.nn.diagnostics.explain import MAX_CROSSOVER, explain
from tests.annotations import annotations_unchecked
from tests.contracts.cases import PAIRS, Case, parametrize_by_kernel


def build(**options: Any) -> Attention:
    torch.manual_seed(0)
    options = {"relative": None, **options}
    return Attention(options.pop("dim", 32), options.pop("heads", 2), **options).eval()


@parametrize_by_kernel(PAIRS, shape=[(3, 5), (29, 23)], backend=["auto", "dense"])
def test_explained_backends_are_the_backends_that_run(
    pair: Case, shape: tuple[int, ...], backend: str
):
    chosen: list[str] = []

    def record(
        plan: AttentionPlan, query: Tensor, key: Tensor, value: Tensor, **masks: Tensor | None
    ) -> Tensor:
        chosen.append(plan.backend)
        return torch.zeros_like(value)  # the output is not used

    grid = Grid(shape)
    layer = build(dim=8, kernel=pair.kernel, relative=pair.relative, backend=backend)
    with torch.no_grad(), annotations_unchecked(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(AttentionPlan, "attend", record)
        layer(torch.randn(1, 1 + grid.num_tokens, 8), grid, None, 1)
    explained = explain(layer, grid, num_prefix_tokens=1)
    assert [group.backend for group in explained.groups] == chosen
    # The heads with the relative kernel are the last ones.
    assert layer.chosen_backend(grid, 1) == chosen[-1]
    assert explained.num_tokens == 1 + grid.num_tokens


@pytest.mark.parametrize(
    "options",
    [
        {"kernel": "squared_relu"},
        {"kernel": "taylor2"},
        {"kernel": "positive", "relative": "fourier"},
        {"relative": "rotary"},
        {"relative": "quadratic"},
        {"causal": True},
        {"causal": True, "kernel": "positive"},
    ],
)
def test_the_crossover_of_a_sequence_is_exact(options: dict[str, Any]):
    layer = build(num_axes=1, **options)
    for prefix, device_type in itertools.product((0, 3), ("cpu", "cuda")):

        def best(num_tokens: int, prefix: int = prefix, device_type: str = device_type) -> str:
            (group,) = explain(
                layer, Grid(num_tokens), num_prefix_tokens=prefix, device_type=device_type
            ).groups
            assert group.backend == next(iter(group.costs))
            return group.backend

        (group,) = explain(
            layer, Grid(17), num_prefix_tokens=prefix, device_type=device_type
        ).groups
        assert group.crossover is not None
        assert best(group.crossover - prefix) != "dense", (prefix, device_type)
        shorter = group.crossover - prefix - 1
        assert shorter == 0 or best(shorter) == "dense", (prefix, device_type)


@pytest.mark.parametrize(
    ("relative", "num_axes"),
    [(None, 2), ("rotation", 2), ("clipped", 3), ("table", 2), ("fourier", 3), ("rotary", 3)],
)
def test_the_crossover_of_a_cube_is_exact(relative: str, num_axes: int):
    layer = build(relative=relative, num_axes=num_axes)

    def best(side: int) -> str:
        return explain(layer, Grid((side,) * num_axes)).groups[-1].backend

    crossover = explain(layer, Grid((4,) * num_axes)).groups[-1].crossover
    assert crossover is not None
    side = round(crossover ** (1 / num_axes))
    assert side**num_axes == crossover
    assert best(side) != "dense"
    assert side == 1 or best(side - 1) == "dense"


def test_the_crossover_does_not_depend_on_the_size_of_the_grid():
    layer = build(relative="rotation")
    crossovers = {explain(layer, Grid((side, side))).groups[0].crossover for side in (3, 16, 200)}
    assert len(crossovers) == 1


def test_costs_are_sorted_and_a_fixed_backend_is_used():
    layer, grid = build(relative="rotation", backend="fft"), Grid((7, 9))
    (group,) = explain(layer, grid).groups
    times = [cost.estimated_time(name) for name, cost in group.costs.items()]
    assert times == sorted(times)
    assert group.backend == "fft"
    assert list(group.costs)[-1] == "fft"
    assert "fft" in str(explain(layer, grid))
    assert "← used (set by the layer)" in str(explain(layer, grid))


def test_costs_of_a_gpu_have_other_rates():
    layer, grid = build(relative="fourier", kernel="positive"), Grid((16, 16))
    on_cpu, on_cuda = (explain(layer, grid, device_type=device) for device in ("cpu", "cuda"))
    assert on_cpu == explain(layer, grid)
    assert on_cpu.groups[0].costs == on_cuda.groups[0].costs
    assert on_cpu.groups[0].crossover != on_cuda.groups[0].crossover
    assert "20 × bytes moved, not measured" in str(on_cuda)
    # Other devices are treated as GPUs.
    on_meta = explain(layer.to("meta"), grid)
    assert "20 × bytes moved, not measured" in str(on_meta)
    assert on_meta.groups[0].crossover == on_cuda.groups[0].crossover


def test_a_context_has_its_own_number_of_tokens():
    layer = build(relative="quadratic")
    explained = explain(layer, Grid((7, 7), spacing=2.0), context_grid=Grid((14, 14)))
    assert (explained.num_tokens, explained.num_keys) == (49, 196)
    assert "49 tokens attend to 196" in str(explained)
    assert set(explained.groups[0].costs) == {
        "dense",
        "toeplitz",
    }  # different spacings exclude the FFT
    same = explain(layer, Grid((7, 7)), context_grid=Grid((7, 7)))
    assert same.groups == explain(layer, Grid((7, 7))).groups


def test_heads_with_and_without_positions_have_separate_costs():
    explained = teka.explain(
        build(heads=4, relative="clipped"), Grid((28, 28)), num_prefix_tokens=1
    )
    content, clipped = explained.groups
    assert (content.name, content.num_heads) == ("squared_relu", 2)
    assert (clipped.name, clipped.num_heads) == ("constant × clipped", 2)
    assert set(content.costs) == {"linear", "dense"}
    assert set(clipped.costs) == {"rings", "dense"}


def test_the_text_of_an_explanation():
    lines = str(
        explain(build(relative="rotation"), Grid((28, 28)), num_prefix_tokens=1)
    ).splitlines()
    assert lines[0] == "785 tokens attend to 785, batch size 1"
    assert lines[1] == "forward cost of one head and sample, at rates measured on a CPU"
    assert lines[3] == "squared_relu × rotation, 2 heads"
    assert lines[4].split() == ["backend", "multiply-adds", "bytes", "moved", "cost"]
    assert {line.split()[0] for line in lines[5:8]} == {"dense", "toeplitz", "fft"}
    assert lines[5].endswith("1.00×  ← used (cheapest)")
    assert lines[8].startswith("  dense costs least below ")
    assert max(map(len, lines)) <= 100


def test_layers_without_a_crossover():
    softmax = explain(build(kernel="softmax"), 500)
    assert softmax.groups[0].crossover is None
    assert str(softmax).endswith(f"dense costs least up to {MAX_CROSSOVER:,} tokens")
    causal = explain(build(relative="quadratic", causal=True, num_axes=1), Grid(100))
    assert set(causal.groups[0].costs) == {"dense"}
    assert MAX_CROSSOVER > 10**7


def test_invalid_arguments_are_errors_with_their_names(unchecked_annotations: None):
    plain, placed = build(), build(relative="rotation", num_axes=2)
    not_a_layer: Any = torch.nn.Linear(3, 3)
    for call, message in (
        (
            lambda: explain(not_a_layer, Grid(3)),
            r"layer must be a teka\.nn\.Attention.*got 'Linear'",
        ),
        (lambda: explain(plain), r"grid must be a teka\.Grid, its shape or its length, got None"),
        (lambda: explain(plain, 0), "grid must be a teka.Grid, its shape or its length, got 0"),
        (lambda: explain(placed, 9), r"num_axes=1"),
        (
            lambda: explain(plain, Grid(3), num_prefix_tokens=-1),
            r"num_prefix_tokens must be .*got -1",
        ),
        (
            lambda: explain(plain, Grid(3), num_prefix_tokens=1, context_grid=Grid(4)),
            "context_grid must be",
        ),
        (
            lambda: explain(build(relative="rotation", backend="linear"), Grid((3, 5))),
            r"backend must be .*got 'linear'",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()
