"""Sequence parallelism: outputs and gradients equal those of one process."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.multiprocessing.spawn import start_processes

from teka import Grid
from teka.nn import Attention, TransformerBlock, shard_tokens
from tests.contracts.cases import relative_error

TORUS, LINE = Grid((7, 3), spacing=(0.5, 1.0), periodic=True), Grid(21, origin=3.0)
LAYERS: dict[str, tuple[dict[str, Any], Grid | None]] = {
    "rotary on a torus": ({}, TORUS),
    "rotary on a line, causal": ({"causal": True, "num_axes": 1}, LINE),
    "fourier, positive": ({"relative": "fourier", "kernel": "positive"}, TORUS),
    "fourier, hyperbolic, causal": (
        {
            "relative": "fourier",
            "kernel": "hyperbolic",
            "causal": True,
            "num_axes": 1,
            "position_heads": 1,
        },
        LINE,
    ),
    "no position, elu": ({"relative": None, "kernel": "elu"}, None),
    "rotary, nonnegative": (
        {"rotary_normalizer": "nonnegative", "query_key": "normalized", "gate": True},
        TORUS,
    ),
}


def gradients(
    model: nn.Module, tokens: Tensor, grid: Grid | None, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the output and its gradients, and the gradients of all parameters."""
    tokens = tokens.requires_grad_()
    output = model(tokens, grid, mask)
    weights = torch.cos(tokens.detach() * 3)
    grads = torch.autograd.grad(
        (output * weights).sum(), [tokens, *model.parameters()], materialize_grads=True
    )
    return torch.cat([output.detach(), grads[0]], dim=-1), torch.cat(
        [tensor.flatten() for tensor in grads[1:]]
    )


def check_part(rank: int, size: int, place: str) -> None:
    """Compare the tokens of this process with a computation of all tokens."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{place}", rank=rank, world_size=size
    )
    for options, grid in LAYERS.values():
        torch.manual_seed(0)
        whole = nn.ModuleDict({"block": TransformerBlock(12, 3, **options)}).double()["block"]
        tokens, mask = torch.randn(2, 21, 12, dtype=torch.float64), torch.rand(2, 21) > 0.3
        rows = 21 if grid is None else grid.shape[0]
        start, stop = (rows * index // size * (21 // rows) for index in (rank, rank + 1))
        part = shard_tokens(copy.deepcopy(whole), distributed.group.WORLD)
        mine, of_parameters = gradients(
            part, tokens[:, start:stop].clone(), grid, mask[:, start:stop]
        )
        distributed.all_reduce(of_parameters)
        reference, of_all = gradients(whole, tokens, grid, mask)
        part = copy.deepcopy(part)  # a copy uses the same process group
        assert torch.equal(
            gradients(part, tokens[:, start:stop].clone(), grid, mask[:, start:stop])[0], mine
        )
        assert relative_error(mine, reference[:, start:stop]) <= 1e-12, options
        assert relative_error(of_parameters, of_all) <= 1e-12, options
    distributed.destroy_process_group()


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_equal_one_process(processes: int, tmp_path: Path):
    # Forked processes need not import PyTorch.
    start_processes(
        check_part, (processes, str(tmp_path / "store")), nprocs=processes, start_method="fork"
    )


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kernel": "softmax"}, "kernel='softmax'"),
        ({"kernel": "optimal"}, "fitted to all tokens"),
        ({"relative": "rotation"}, "relative='rotation'"),
        ({"query_key": "centred"}, "centred"),
        ({"value_convolution": 3}, "value_convolution"),
        ({"backend": "dense"}, "backend='dense'"),
    ],
    ids=lambda value: None if isinstance(value, str) else next(iter(value.values())),
)
def test_unsupported_layers_are_errors_and_change_nothing(
    options: dict[str, Any], reason: str, tmp_path: Path
):
    model = nn.Sequential(Attention(8, 2), Attention(8, 2, **options))
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        with pytest.raises(ValueError, match=rf"attention 1 must be .*got .*{reason}.*"):
            shard_tokens(model, distributed.group.WORLD)
        assert model[0].token_group is None
    finally:
        distributed.destroy_process_group()


def test_wrong_group_is_an_error():
    with pytest.raises(ValueError, match=r"group must be a process group.*got 'tokens'"):
        shard_tokens(Attention(8, 2), "tokens")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"model must be .*got 'Linear'"):
        shard_tokens(nn.Linear(2, 2), None)
    shard_tokens(Attention(8, 2, kernel="softmax"), None)  # nothing to divide
    with pytest.raises(ValueError, match=r"count must be .*got 4"):
        Grid((3, 5)).shard(0, 4)
