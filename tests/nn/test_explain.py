import itertools
from typing import Any

import pytest
import torch
from tests.annotations import annotations_unchecked
from tests.contracts.cases import PAIRS, Case, together

import teka
from teka import Grid
from teka.functional.plan import Plan
from teka.nn import Attention, RandomFeatures
from teka.nn.diagnostics.explain import LONGEST, explain


def build(**options: Any) -> Attention:
    torch.manual_seed(0)
    options = {"relative": None, **options}
    return Attention(options.pop("dim", 32), options.pop("heads", 2), **options).eval()


@together(PAIRS, shape=[(3, 5), (29, 23)], backend=["auto", "dense"])
def test_the_backends_it_names_are_those_that_compute(
    pair: Case, shape: tuple[int, ...], backend: str
):
    chosen: list[str] = []

    evaluate = Plan.evaluate

    def record(plan: Plan, *given: torch.Tensor, **masks: torch.Tensor | None) -> torch.Tensor:
        chosen.append(plan.backend)
        return evaluate(plan, *given, **masks)

    grid, layer = (
        Grid(shape),
        build(dim=8, kernel=pair.kernel, relative=pair.relative, backend=backend),
    )
    if isinstance(layer.kernel, RandomFeatures):
        layer.kernel.is_unchecked = (
            False  # no comparison with the truth, which chooses a backend too
        )
    with torch.no_grad(), annotations_unchecked(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Plan, "evaluate", record)
        layer(torch.randn(1, 1 + grid.num_tokens, 8), grid, None, 1)
    explained = explain(layer, grid, num_prefix_tokens=1)
    assert [group.backend for group in explained.groups] == chosen
    assert (
        layer.chosen_backend(grid, 1) == chosen[-1]
    )  # the heads with the relative kernel come last
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
def test_on_a_sequence_dense_is_cheapest_just_below_the_crossover_and_not_at_it(
    options: dict[str, Any],
):
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
def test_on_a_cube_dense_is_cheapest_with_sides_one_shorter_and_not_at_the_crossover(
    relative: str, num_axes: int
):
    layer = build(relative=relative, num_axes=num_axes)

    def best(side: int) -> str:
        return explain(layer, Grid((side,) * num_axes)).groups[-1].backend

    crossover = explain(layer, Grid((4,) * num_axes)).groups[-1].crossover
    assert crossover is not None
    side = round(crossover ** (1 / num_axes))
    assert side**num_axes == crossover
    assert best(side) != "dense"
    assert side == 1 or best(side - 1) == "dense"


def test_the_crossover_does_not_depend_on_the_size_that_was_asked_about():
    layer = build(relative="rotation")
    crossovers = {explain(layer, Grid((side, side))).groups[0].crossover for side in (3, 16, 200)}
    assert len(crossovers) == 1


def test_costs_come_cheapest_first_and_one_that_was_asked_for_is_used_all_the_same():
    layer, grid = build(relative="rotation", backend="fft"), Grid((7, 9))
    (group,) = explain(layer, grid).groups
    work = [cost.work(name, "cpu") for name, cost in group.costs.items()]
    assert work == sorted(work)
    assert group.backend == "fft"
    assert list(group.costs)[-1] == "fft"
    assert "fft" in str(explain(layer, grid))
    assert "← computes it (asked for)" in str(explain(layer, grid))


def test_a_gpu_weighs_bytes_at_its_own_rate_and_is_not_needed_for_that():
    layer, grid = build(relative="fourier", kernel="positive"), Grid((16, 16))
    on_cpu, on_cuda = (explain(layer, grid, device_type=device) for device in ("cpu", "cuda"))
    assert on_cpu == explain(layer, grid)
    assert on_cpu.groups[0].costs == on_cuda.groups[0].costs
    assert on_cpu.groups[0].crossover != on_cuda.groups[0].crossover
    assert "20 × bytes moved, a rate not measured on cuda" in str(on_cuda)
    elsewhere = explain(layer.to("meta"), grid)
    assert "not measured on meta" in str(elsewhere)  # not known: as a GPU
    assert elsewhere.groups[0].crossover == on_cuda.groups[0].crossover


def test_a_context_has_its_own_number_of_tokens():
    layer = build(relative="quadratic")
    explained = explain(layer, Grid((7, 7), spacing=2.0), context_grid=Grid((14, 14)))
    assert (explained.num_tokens, explained.num_keys) == (49, 196)
    assert "49 tokens attend to 196" in str(explained)
    assert set(explained.groups[0].costs) == {"dense", "toeplitz"}  # two spacings: no transform
    same = explain(layer, Grid((7, 7)), context_grid=Grid((7, 7)))
    assert same.groups == explain(layer, Grid((7, 7))).groups


def test_heads_with_and_without_positions_are_explained_apart():
    explained = teka.explain(
        build(heads=4, relative="clipped"), Grid((28, 28)), num_prefix_tokens=1
    )
    content, rings = explained.groups
    assert (content.name, content.num_heads) == ("squared_relu", 2)
    assert (rings.name, rings.num_heads) == ("constant × clipped", 2)
    assert set(content.costs) == {"linear", "dense"}
    assert set(rings.costs) == {"rings", "dense"}


def test_it_reads_as_written():
    lines = str(
        explain(build(relative="rotation"), Grid((28, 28)), num_prefix_tokens=1)
    ).splitlines()
    assert lines[0] == "785 tokens; forward cost of one head of one sample"
    assert lines[1] == "cost: both at the rates of each backend, measured on a CPU"
    assert lines[3] == "squared_relu × rotation, 2 heads"
    assert lines[4].split() == ["backend", "multiply-adds", "bytes", "moved", "cost"]
    assert {line.split()[0] for line in lines[5:8]} == {"dense", "toeplitz", "fft"}
    assert lines[5].endswith("1.00×  ← computes it (cheapest)")
    assert lines[8].startswith("  dense is the cheapest below ")
    assert max(map(len, lines)) <= 120


def test_where_nothing_crosses_it_says_so():
    softmax = explain(build(kernel="softmax"), num_tokens=500)
    assert softmax.groups[0].crossover is None
    assert str(softmax).endswith("only the dense backend can compute this")
    causal = explain(build(relative="quadratic", causal=True, num_axes=1), Grid(100))
    assert set(causal.groups[0].costs) == {"dense"}
    assert LONGEST > 10**7


def test_bad_arguments_are_errors_that_name_them(as_users_run_it: None):
    plain, placed = build(), build(relative="rotation")
    not_a_layer: Any = torch.nn.Linear(3, 3)
    for call, message in (
        (
            lambda: explain(not_a_layer, Grid(3)),
            r"layer must be a teka\.nn\.Attention.*got 'Linear'",
        ),
        (lambda: explain(plain), r"grid must be a teka\.Grid, or num_tokens.*got None"),
        (lambda: explain(placed, num_tokens=9), r"grid must be a teka\.Grid, got None."),
        (
            lambda: explain(plain, Grid(3), num_tokens=3),
            r"num_tokens must be None with a grid, got both",
        ),
        (lambda: explain(plain, num_tokens=0), "num_tokens must be at least 1.*got 0"),
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
