"""The command `fix`, which makes a model less sensitive to shifts of its input images."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from torch import nn

from teka import convert
from teka.audit.layers.fixes import FIXES
from teka.audit.model_comparison import compare_models
from teka.audit.page.compared import describe_accuracy_change
from teka.audit.page.text import audit_text
from teka.audit.settings import PARTS
from teka.checks import check_names
from teka.cli.app import CommandLine
from teka.cli.audit import audit_all_modes, print_and_write_comparison, print_and_write_results
from teka.cli.audit_options import AuditOptions
from teka.codec import encode
from teka.errors import (
    EXTERNAL_ERRORS,
    escape_unprintable,
    escape_unprintable_except_newlines,
    first_line_of_error,
    wrong_value,
)
from teka.files import write_bytes
from teka.models.model_file import serialize_weights
from teka.reporting.formatting import join_words


def fix(
    model: str,
    /,
    *,
    options: AuditOptions,
    fix: Annotated[str | None, Parameter(group="Fixes")] = None,
    out: Annotated[str | None, Parameter(group="Results")] = None,
    command: CommandLine,
) -> None:
    """Make a model less sensitive to shifts without training, and audit it before and after.

    The report says which layers were changed, which layers could not be changed, and how much
    accuracy the changes cost.

    For example:

        teka fix runs/resnet18 --data cifar10 --data-dir data --html fixed.html
        teka fix timm:resnet18.a1_in1k --data pictures --fix blur --mode crop --json fixed.json
        teka fix model.py:make --data images.npz --fix circular,polyphase --out fixed.safetensors

    Args:
        model: A PyTorch model. See `teka audit --help` for the kinds of models.
        fix: Fixes to apply, separated by commas: circular (circular padding), blur (a low-pass
            filter before each stride), polyphase (strides that start at an offset chosen by the
            content), positions (the same position embedding for all positions). By default the
            fixes that the audit advises for the layers that break equivariance first.
        out: safetensors file for the weights of the changed model. It is written only if a fix
            changes weights.
    """
    fixes = None if fix is None else check_names("fix", fix.split(","), FIXES)
    results = options.results
    settings = options.make_audit_settings(PARTS if results.html is not None else ("layers",))
    results.check_output_files((model, options.images.data), out=out)
    inputs = options.prepare_audit_inputs(options.load_model(model), settings)
    is_program = inputs.model.kind in ("onnx", "torchscript", "torch.export")
    if is_program or not isinstance(inputs.function, nn.Module):
        expected = "a torch.nn.Module, whose layers can be changed"
        raise wrong_value("model", model, expected, "Fix a model before you export it.")
    try:
        copy.deepcopy(inputs.function)
    except EXTERNAL_ERRORS as error:
        raise wrong_value(
            "model", model, f"a module that can be copied ({first_line_of_error(error)})"
        ) from error
    print("\n".join(inputs.description), flush=True)
    before = audit_all_modes(inputs, command, results, "before")
    if before.layers is None:
        raise ValueError(
            "; ".join(f"{failure.part}: {failure.message}" for failure in before.failures)
        )
    fixed, outcome = convert.fix(inputs.function, before.layers, fixes)
    for name in outcome.fixed:
        print(f"{name}: {FIXES[name].effect} ({FIXES[name].source})")
    print(escape_unprintable_except_newlines(outcome), flush=True)
    num_layers = {name: len(layers) for name, layers in outcome.fixed.items() if layers}
    if not num_layers:
        print_and_write_results(
            [before],
            {"reports": [before.to_dict()], "comparisons": [], "fix": encode(outcome)},
            results,
            audit_text([before]),
        )
        return
    name = f"{inputs.model.name} (fixed)"
    facts = {**inputs.audit_arguments["model_facts"], "name": name, "fixed": num_layers}
    fixed_inputs = replace(
        inputs,
        function=fixed,
        model=replace(inputs.model, name=name),
        audit_arguments={**inputs.audit_arguments, "model_facts": facts},
    )
    # Each set of fixes has its own resume folder, because the weights do not identify the fixes.
    after = audit_all_modes(fixed_inputs, command, results, "-".join(num_layers))
    comparison = compare_models([inputs, fixed_inputs], [before, after])
    before, after = comparison.reports
    first, *rest = after.verdict
    if not (before.invalid or after.invalid):
        first = f"{first} {describe_accuracy_change(comparison.pairs)}"
    counts = [f"{name} in {n} layer{'s' if n > 1 else ''}" for name, n in num_layers.items()]
    verdict = (first, f"Fixed without training: {join_words(counts)}.", *rest)
    comparison = replace(comparison, reports=[before, replace(after, verdict=verdict)])
    print_and_write_comparison(comparison, results, fix=encode(outcome))
    if out is None:
        return
    if not outcome.parameters:
        print(
            f"not written: {escape_unprintable(out)}, because the fixes changed layers but no "
            "weights; to get the changed model, call teka.convert.fix in Python"
        )
        return
    # Save only the original model, without the preprocessing wrapper, so that weights keep names.
    modules = inputs.function.named_modules()
    path = next((name for name, module in modules if module is inputs.model.module), "")
    write_bytes(Path(out), serialize_weights(fixed.get_submodule(path), "float32"))
    print(f"written: {escape_unprintable(out)}")
