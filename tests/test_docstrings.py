"""Docstrings list all values of an option, because the help of the command line shows them."""

import ast
import doctest
import functools
import inspect
import pkgutil
import re
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import get_args, get_type_hints

import pytest
import torch

import teka
from reproduction.baselines.self_attention_network import POSITIONS as ENCODINGS
from teka.cli.model_options import build_model_options_class
from teka.functional import BACKENDS, KERNELS, PROJECTIONS, RELATIVES
from teka.functional.backends import triton as triton_backend
from teka.functional.kernels import DETERMINISTIC_KERNELS
from teka.functional.kernels.rectified import FlooredRelu
from teka.functional.relative.rotary import ROTARY_NORMALIZERS
from teka.models.model_config import MODELS
from teka.models.performer_config import POOLS, POSITIONS, STEMS
from teka.nn.options import VALUES
from teka.nn.qk_norm import QUERY_KEYS
from teka.training.recipe import OPTIMIZERS, PRECISIONS, SCHEDULES

PACKAGE = Path(teka.__file__).parent
TAKES = {
    "kernel": KERNELS,
    "relative": RELATIVES,
    "position": POSITIONS,
    "projection": PROJECTIONS,
    "backend": BACKENDS,
    "normalizer": ROTARY_NORMALIZERS,
    "rotary_normalizer": ROTARY_NORMALIZERS,
    "query_key": QUERY_KEYS,
    "values": VALUES,
    "encoding": ENCODINGS,
    "model": MODELS,
    "stem": STEMS,
    "pool": POOLS,
    "SelfAttentionNetwork.position": ENCODINGS,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "precision": PRECISIONS,
    "epsilon": [
        name for name, kind in DETERMINISTIC_KERNELS.items() if issubclass(kind, FlooredRelu)
    ],
    "decode.relative": [name for name, kind in RELATIVES.items() if kind.supports_decoding],
}
POINTER = re.compile(r"\bname of (?:`teka\.|a relative kernel)")
ENTRY = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", flags=re.MULTILINE)


@functools.cache
def argument_descriptions() -> list[tuple[str, str, str]]:
    """Return the name of the owner, the name and the description of every documented argument."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                _, _, entries = (ast.get_docstring(node) or "").partition("Args:\n")
                found += [(node.name, argument, text) for argument, text in ENTRY.findall(entries)]
    return found


@pytest.mark.parametrize("argument", sorted({name.rpartition(".")[2] for name in TAKES}))
def test_lists_of_names_are_complete(argument: str):
    for owner, _, text in [entry for entry in argument_descriptions() if entry[1] == argument]:
        names = set(TAKES.get(f"{owner}.{argument}", TAKES.get(argument, ())))
        listed = names.intersection(re.findall(r'"([\w-]+)"', text))
        assert len(listed) < 2 or listed == names or POINTER.search(text), (
            f"{owner}: {argument}: {text}"
        )


@pytest.mark.parametrize("argument", ["kernel", "position", "backend", "model", "query_key"])
def test_command_line_lists_all_run_options(argument: str):
    _, parameter = get_args(
        get_type_hints(build_model_options_class(), include_extras=True)[argument]
    )
    assert all(f'"{name}"' in parameter.help for name in TAKES[argument])


# timm needs torchvision, which is only in the environment of tests/vision.
NOT_TESTED = ("teka.__main__", "teka.integrations.timm")


@functools.cache
def modules() -> list[ModuleType]:
    """Return every module of the library."""
    names = [
        module.name
        for module in pkgutil.walk_packages(teka.__path__, "teka.")
        if module.name not in NOT_TESTED
    ]
    available = [
        name
        for name in names
        if triton_backend.HAS_TRITON or not name.startswith(f"{triton_backend.__name__}.")
    ]
    return [teka, *map(import_module, available)]


def has_docstring(kind: type, name: str) -> bool:
    """Return True if a class or a base class documents a method."""
    bases = [
        base
        for base in kind.__mro__
        if name in vars(base) and base.__module__ != "torch.nn.modules.module"
    ]
    return any(
        inspect.unwrap(getattr(vars(base)[name], "__func__", vars(base)[name])).__doc__
        for base in bases
    )


def test_every_public_method_has_a_docstring():
    classes = {
        kind for module in modules() for kind in vars(module).values() if inspect.isclass(kind)
    }
    undocumented = [
        f"{kind.__module__}.{kind.__name__}.{name}"
        for kind in classes
        if kind.__module__.startswith("teka") and not kind.__name__.startswith("_")
        for name, member in dict(
            vars(kind)
        ).items()  # Python 3.14 changes it when annotations are read
        if not (
            name.startswith("_")
            or name in ("extra_repr", "forward")
            or name in inspect.get_annotations(kind)
        )
        if isinstance(member, FunctionType | classmethod | staticmethod | property)
        and not has_docstring(kind, name)
    ]
    assert undocumented == []


def test_every_exported_class_has_an_example():
    offered = [
        getattr(module, name) for module in modules() for name in getattr(module, "__all__", ())
    ]
    classes = {value for value in offered if inspect.isclass(value)}
    assert {teka.Grid, teka.nn.Attention} <= classes
    assert [kind for kind in classes if ">>> " not in (vars(kind)["__doc__"] or "")] == []


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
        ".__init__"
    )


WITH_EXAMPLES = [
    path for path in sorted(PACKAGE.rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")
]
WITH_EXAMPLES = [path for path in WITH_EXAMPLES if module_name(path) not in NOT_TESTED]


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_docstring_examples(path: Path):
    torch.manual_seed(0)
    result = doctest.testmod(
        import_module(module_name(path)),
        optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE,
    )
    assert result.attempted
    assert not result.failed
