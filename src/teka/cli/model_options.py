"""Command-line options of `teka train` that configure the model, such as `--dim`."""

import types
from collections.abc import Sequence
from dataclasses import field, fields, make_dataclass
from typing import Annotated, Any, Union, get_args, get_origin

import docstring_parser
from cyclopts import Parameter

from teka.models.model_config import MODELS, options_class


def build_model_options_class() -> type[Any]:
    """Build a dataclass whose fields are the options of all registered models, such as `--dim`.

    The fields default to None, which means the default of the model. If several models share an
    option, its help text comes from the first of them.
    """
    names = " or ".join(f'"{name}"' for name in MODELS)
    model_option = Annotated[str, Parameter(help=f"Name of the model: {names}.")]
    options: dict[str, tuple[str, Any, Any]] = {
        "model": ("model", model_option, field(default="performer"))
    }
    for model in MODELS:
        declared = options_class(model)
        docstring = docstring_parser.parse(declared.__doc__ or "")
        descriptions = {entry.arg_name: entry.description for entry in docstring.params}
        for option in fields(declared):
            kind = _select_parsable_types(option.type)
            takes_list = any(get_origin(member) in (tuple, Sequence) for member in get_args(kind))
            parameter = Parameter(
                help=descriptions.get(option.name),
                show=option.name != "head",  # a run has only one head, which its run.json names
                n_tokens=-1 if takes_list else None,  # several words, as in `--dim 64 128`
            )
            annotated = Annotated[kind, parameter]
            options.setdefault(option.name, (option.name, annotated, field(default=None)))
    namespace = {"__module__": __name__, "__doc__": "Options of the models."}
    return make_dataclass("ModelOptions", options.values(), frozen=True, namespace=namespace)


def _select_parsable_types(kind: Any) -> Any:
    """Return the union of None and the types in `kind` that can be parsed from the command line.

    None is included because it is the default of every option. The list types come first.

    Args:
        kind: Type or union of types, such as `str | nn.Module | None`.
    """
    is_union = get_origin(kind) in (Union, types.UnionType)
    members = get_args(kind) if is_union else (kind,)
    lists = [member for member in members if get_origin(member) in (tuple, Sequence)]
    others = [member for member in members if member in (bool, int, float, str)]
    return Union[(*lists, *others, None)]
