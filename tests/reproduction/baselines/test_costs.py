"""Tests of the parameters and FLOPs in the README of the baselines."""

import ast
import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import reproduction.baselines
from reproduction.flops import make_flop_counter
from teka.models.model_config import MODELS, model_class

PAGE = Path(reproduction.baselines.__file__).with_name("README.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(.*)` \| ([\d,]+) \| ([\d,.]+) \|", PAGE, flags=re.MULTILINE)


def read_options(words: list[str]) -> dict[str, Any]:
    """Return options such as "heads=16", whose values are numbers, tuples or strings."""
    options = dict(word.split("=") for word in words)
    for name, text in options.items():
        with contextlib.suppress(ValueError, SyntaxError):
            options[name] = ast.literal_eval(text)
    return options


def test_every_model_is_in_the_table():
    assert {model_options.split()[0] for model_options, *_ in ROWS} == set(MODELS)


@pytest.mark.parametrize(("model_options", "parameters", "mflops"), ROWS)
def test_table_has_the_parameters_and_flops_of_the_models(model_options, parameters, mflops):
    name, *options = model_options.split()
    device = "cpu" if name in ("performer", "conv_performer", "self_attention") else "meta"
    with torch.device(device), torch.no_grad():  # Tensors on "meta" have only shapes.
        model = model_class(name)(32, 3, 10, **read_options(options)).eval()
        with make_flop_counter() as counter:
            model(torch.zeros(1, 3, 32, 32))
    assert f"{sum(parameter.numel() for parameter in model.parameters()):,}" == parameters
    assert f"{counter.get_total_flops() / 1e6:,.1f}" == mflops


def test_page_has_the_flops_of_linear_layers_as_in_the_paper():
    model = model_class("self_attention")(32, 3, 10).eval()
    with torch.no_grad(), make_flop_counter() as counter:
        model(torch.zeros(1, 3, 32, 32))
    flops = {path: sum(counts.values()) for path, counts in counter.get_flop_counts().items()}
    linear = [
        path
        for path, module in model.named_modules()
        if isinstance(module, torch.nn.Linear | torch.nn.Conv2d)
    ]
    total = sum(flops.get(f"SelfAttentionNetwork.{path}", 0) for path in linear)
    assert f"{total / 1e9:.2f} GFLOPs" in " ".join(PAGE.split())
