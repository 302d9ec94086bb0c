"""The command `fix`: make a model less sensitive to shifts without training."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from torch import nn

from teka.audit.adapters.case import AuditCase
from teka.audit.layers.fixes import FIXES
from teka.audit.page.compared import excluded, write_ends
from teka.audit.page.metric_formatting import write_difference
from teka.audit.page.text import audit_text
from teka.audit.report import AuditReport
from teka.audit.settings import PARTS
from teka.audit.statistics.ranking import Pair
from teka.checks import check_name
from teka.cli.app import CommandLine
from teka.cli.audit import write_results
from teka.cli.audit_options import AuditOptions
from teka.cli.compare import audit_modes, write_comparison
from teka.codec import encode
from teka.convert.mending import mend
from teka.errors import (
    EXTERNAL_ERRORS,
    first_line,
    one_line,
    printable,
    printable_lines,
    wrong_value,
)
from teka.files import make_directory, write_bytes
from teka.models.model_file import serialize_weights
from teka.reporting.formatting import listed, write_p_value
from teka.reporting.tables import LONGEST_TEXT


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

    The report says what was changed, what could not be changed, and what that costs in accuracy.

    For example:

        teka fix runs/resnet18 --data cifar10 --data-dir data --html fixed.html
        teka fix timm:resnet18.a1_in1k --data pictures --fix blur --mode crop --json fixed.json
        teka fix model.py:make --data images.npz --fix circular,polyphase --out fixed.safetensors

    Args:
        model: A PyTorch model, as `teka audit` takes it.
        fix: Fixes to apply, separated by commas: circular, blur, polyphase, positions. By default
            those that the audit advises for the layers that break equivariance first.
        out: File of safetensors for the changed weights, if a fix changes any.
    """
    fixes = None if fix is None else fix.split(",")
    for name in fixes or ():
        check_name("fix", name, FIXES)
    results = options.results
    settings = options.make_settings(PARTS if results.html is not None else ("layers",))
    state = results.check((model, options.images.data), out=out)
    case = options.make_case(options.load_model(model), settings)
    if not isinstance(case.function, nn.Module):
        raise wrong_value("model", model, "a torch.nn.Module, whose layers can be changed")
    try:
        copy.deepcopy(case.function)
    except EXTERNAL_ERRORS as error:
        expected = f"a module that can be copied ({first_line(error)})"
        raise wrong_value("model", model, expected) from error
    print(one_line(case.description, LONGEST_TEXT), flush=True)
    folder = None if state is None else make_directory("resume", state / "before")
    before = audit_modes(case, command, folder, debug=results.debug)
    if before.layers is None:
        failures = (f"{failure.part}: {failure.message}" for failure in before.failures)
        raise ValueError("; ".join(failures))
    fixed, outcome = mend(case.function, before.layers, fixes)
    for name in outcome.fixed:
        print(f"{name}: {FIXES[name].does} ({FIXES[name].source})")
    print(printable_lines(outcome), flush=True)
    num_layers = {name: len(layers) for name, layers in outcome.fixed.items() if layers}
    if not num_layers:
        content = {"reports": [before.to_dict()], "comparisons": [], "mending": encode(outcome)}
        write_results([before], content, results, audit_text([before]))
        return
    fixed_case = _rename(case, fixed, num_layers)
    # The state is kept per set of fixes, because the weights do not tell the sets apart.
    folder = None if state is None else make_directory("resume", state / "-".join(num_layers))
    after = audit_modes(fixed_case, command, folder, debug=results.debug)

    def judge(reports: list[AuditReport], pairs: Sequence[Pair]) -> list[AuditReport]:
        first, *rest = reports[1].verdict
        cost = " ".join(excluded(reports)) or accuracy_cost(pairs)
        counts = [f"{name} in {n} layer{'s' if n > 1 else ''}" for name, n in num_layers.items()]
        verdict = (f"{first} {cost}", f"Fixed without training: {listed(counts)}.", *rest)
        return [reports[0], replace(reports[1], verdict=verdict)]

    write_comparison([case, fixed_case], [before, after], results, judge, mending=encode(outcome))
    if out is None:
        return
    if not outcome.parameters:
        print("not written: weights, because no fix changed any")
        return
    # Without the module that prepares the images, so that the weights keep their names.
    modules = case.function.named_modules()
    path = next((name for name, module in modules if module is case.subject.module), "")
    write_bytes(Path(out), serialize_weights(fixed.get_submodule(path), "float32"))
    print(f"written: {printable(out)}")


def _rename(case: AuditCase, function: nn.Module, num_layers: dict[str, int]) -> AuditCase:
    name = f"{case.subject.name}, fixed"
    facts = {**case.known["model_facts"], "name": name, "mended": num_layers}
    known = {**case.known, "model_facts": facts}
    subject = replace(case.subject, name=name)
    return replace(case, function=function, subject=subject, known=known)


def accuracy_cost(pairs: Sequence[Pair]) -> str:
    """Return a sentence on the change of the accuracy on unshifted images.

    The first model of each pair is the one before the fix.
    """
    modes_of: dict[str, list[str]] = {}
    for pair in pairs:
        before = pair.comparison.numbers.get("accuracy")
        if before is None:
            continue
        change = replace(before, value=-before.value, lower=-before.upper, upper=-before.lower)
        if change.p_value > 1 - change.confidence:
            sentence = "The change of its accuracy on unshifted images is not significant"
        else:
            verb = "loses" if change.value < 0 else "gains"
            sentence = f"It {verb} accuracy on unshifted images"
        points = write_difference("accuracy", change.value)
        ends = f"{write_ends('accuracy', change)}, {write_p_value(change.p_value)}"
        sentence = f"{sentence}: {points} points ({ends})"
        modes_of.setdefault(sentence, []).append(pair.comparison.movement.mode)
    if not modes_of:
        return "The cost in accuracy is not known, because the images have no labels."
    if len(modes_of) == 1:
        return f"{next(iter(modes_of))}."
    return " ".join(f"{text} in mode {listed(modes)}." for text, modes in modes_of.items())
