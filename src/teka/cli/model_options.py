"""Command-line options of all models, combined in one dataclass."""

import types
from collections.abc import Mapping, Sequence
from dataclasses import field, fields, make_dataclass
from typing import Any, Union, get_args, get_origin

import docstring_parser

from teka.models import PerformerConfig
from teka.models.model_config import MODELS, options_class

DOCSTRING = """Options of the models.

Args:
    model: {models}.
{options}"""


def model_options_class() -> type[Any]:
    """Return a dataclass whose fields are the options of all registered models.

    The default of each option is None, which selects the default of the model. If several models
    have an option, its description is that of the first model.
    """
    kinds: dict[str, Any] = {}
    texts: dict[str, str] = {}
    for name, model in MODELS.items():
        described = PerformerConfig if name == "performer" else model
        docstring = docstring_parser.parse(described.__doc__ or "")
        descriptions = {entry.arg_name: entry.description or "" for entry in docstring.params}
        for option in fields(options_class(name)):
            # A run trains a classifier, so that it needs no dense head.
            if option.name not in (*kinds, "head"):
                kinds[option.name] = _json_type(option.type)
                texts[option.name] = descriptions.get(option.name, "")
    options = [(name, kind, field(default=None)) for name, kind in kinds.items()]
    declared = [("model", str, field(default="performer")), *options]
    options_type = make_dataclass(
        "ModelOptions", declared, frozen=True, namespace={"__module__": __name__}
    )
    entries = [f"    {name}: {' '.join(text.split())}" for name, text in texts.items()]
    models = ", ".join(f'"{name}"' for name in MODELS)
    options_type.__doc__ = DOCSTRING.format(models=models, options="\n".join(entries))
    return options_type


def given_options(options: object) -> Mapping[str, Any]:
    """Return the options that are set, as a dictionary."""
    return {name: value for name, value in vars(options).items() if value is not None}


def _json_type(kind: Any) -> Any:
    """Return the union of None and those members of a type that JSON can represent."""
    is_union = get_origin(kind) in (Union, types.UnionType)
    kept = [
        member
        for member in (get_args(kind) if is_union else (kind,))
        if member in (bool, int, float, str) or get_origin(member) in (tuple, Sequence)
    ]
    return Union[(*kept, None)]
