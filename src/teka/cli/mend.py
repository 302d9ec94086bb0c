"""`teka mend`: what a model loses shifts by is changed without training, and the model audited before and after."""

import copy
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

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
from teka.cli.audit import (
    MODEL_HELP,
    OPTIONS,
    check_files,
    make_settings,
    read_case,
    read_model,
    write_results,
)
from teka.cli.compare import audit_modes, write_comparison
from teka.cli.parser import Option, command
from teka.codec import encode
from teka.convert.mending import Mending
from teka.convert.mending import mend as mend_model
from teka.errors import (
    EXTERNAL_ERRORS,
    first_line,
    one_line,
    printable,
    printable_lines,
    wrong_value,
)
from teka.files import make_directory, write_bytes
from teka.models.model_file import pack
from teka.reporting.formatting import listed, write_p_value
from teka.reporting.tables import LONGEST_TEXT

FIX_HELP = (
    f"What to change, joined by commas: {', '.join(FIXES)}; by default what mends the layers that the audit of the "
    "model finds to break first."
)


@command(
    Option("model", str, MODEL_HELP, metavar="MODEL"),
    *OPTIONS,
    Option("--fix", str | None, FIX_HELP),
    Option("--out", str | None, "File of weights to write as safetensors, if a fix changed any."),
    examples=(
        "teka mend timm:resnet18.a1_in1k --data cifar10 --data-dir data --html mended.html",
        "teka mend timm:resnet18.a1_in1k --data pictures --fix blur --mode crop --json mended.json",
        "teka mend model.py:make --data images.npz --fix circular,polyphase,positions --out mended.safetensors",
    ),
)
def mend(options: Namespace, command: str) -> None:
    """Change what a model loses shifts by, without training, and audit it before and after.

    It says what was changed, what could not be, and what that costs in accuracy, over the same images and shifts.
    """
    fixes = None if options.fix is None else options.fix.split(",")
    for fix in fixes or ():
        check_name("fix", fix, FIXES)
    settings = make_settings(options, PARTS if options.html is not None else ("layers",))
    state = check_files(options)
    case = read_case(read_model(options.model, options), options, settings)
    if not isinstance(case.function, nn.Module):
        raise wrong_value("model", options.model, "a torch.nn.Module, whose layers can be changed")
    try:
        copy.deepcopy(case.function)
    except EXTERNAL_ERRORS as error:
        raise wrong_value(
            "model", options.model, f"a module that can be copied ({first_line(error)})"
        ) from error
    print(one_line(case.description, LONGEST_TEXT))
    folder = None if state is None else make_directory("resume", state / "before")
    before = audit_modes(case, command, folder, debug=options.debug)
    if before.layers is None:
        raise ValueError(
            "; ".join(f"{failure.part}: {failure.message}" for failure in before.failures)
        )
    mended, done = mend_model(case.function, before.layers, fixes)
    print(
        *(f"{fix}: {FIXES[fix].does} ({FIXES[fix].source})" for fix in done.fixed),
        printable_lines(done),
        sep="\n",
    )
    made = {fix: len(layers) for fix, layers in done.fixed.items() if layers}
    if not made:
        content = {"reports": [before.to_dict()], "comparisons": [], "mending": encode(done)}
        write_results([before], content, options, audit_text([before]))
        return
    name = f"{case.subject.name}, mended"
    known = {
        **case.known,
        "model_facts": {**case.known["model_facts"], "name": name, "mended": made},
    }
    other = replace(case, function=mended, subject=replace(case.subject, name=name), known=known)
    # The state of other fixes would be taken for this one's, since the weights are the same.
    folder = None if state is None else make_directory("resume", state / "-".join(made))
    after = audit_modes(other, command, folder, debug=options.debug)

    def judge(reports: Sequence[AuditReport], pairs: Sequence[Pair]) -> list[AuditReport]:
        first, *rest = reports[1].verdict
        price = " ".join(excluded(reports)) or cost(pairs)
        words = (f"{first} {price}", f"Mended without training: {_counted(made)}.", *rest)
        return [reports[0], replace(reports[1], verdict=words)]

    write_comparison([case, other], [before, after], options, judge, mending=encode(done))
    if options.out is not None:
        _write_weights(case, mended, done, Path(options.out))


def cost(pairs: Sequence[Pair]) -> str:
    """What mending does to the accuracy of images that are not moved, of the model before as the first of each pair."""
    found = [
        (pair.comparison.movement.mode, pair.comparison.numbers.get("accuracy")) for pair in pairs
    ]
    sentences: dict[str, list[str]] = {}
    for mode, one in found:
        if one is None:
            continue
        one = replace(one, value=-one.value, lower=-one.upper, upper=-one.lower)
        if one.p_value > 1 - one.confidence:
            words = "Its accuracy unshifted is not told apart from that before"
        else:
            words = f"It {'loses' if one.value < 0 else 'gains'} accuracy unshifted"
        size = f"{write_difference('accuracy', one.value)} points"
        words = f"{words}: {size} ({write_ends('accuracy', one)}, {write_p_value(one.p_value)})"
        sentences.setdefault(words, []).append(mode)
    several = len(sentences) > 1
    told = [
        f"{words}{f' in mode {listed(modes)}' if several else ''}."
        for words, modes in sentences.items()
    ]
    return " ".join(told) or "What that costs in accuracy is not known: the images have no labels."


def _counted(made: dict[str, int]) -> str:
    return listed(
        [f"{fix} in {count} layer{'s' if count > 1 else ''}" for fix, count in made.items()]
    )


def _write_weights(case: AuditCase, mended: nn.Module, done: Mending, path: Path) -> None:
    """Write the state of the model itself, without what prepares its images, by the names that it has of old."""
    assert isinstance(case.function, nn.Module)
    if not done.parameters:
        print("not written: weights, for no fix changed any")
        return
    place = next(
        (name for name, one in case.function.named_modules() if one is case.subject.module), ""
    )
    write_bytes(path, pack(mended.get_submodule(place), "float32"))
    print(f"written: {printable(path)}")
