"""Links, names and numbers in the documentation. `make docs` builds the site itself."""

import importlib
import math
import re
import shlex
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import teka
from reproduction.__main__ import make_reproduction_app
from teka import functional
from teka.cli.app import COMMANDS
from teka.functional import RELATIVES
from teka.functional.kernels import DETERMINISTIC_KERNELS, LEARNED_KERNELS, RANDOM_KERNELS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PACKAGE = Path(functional.__file__).parents[1]
PAGES = sorted(DOCS.rglob("*.md"))
REPRODUCTION_PAGES = sorted((ROOT / "reproduction").rglob("*.md"))
TEXTS = {page: page.read_text(encoding="utf-8") for page in [*PAGES, *REPRODUCTION_PAGES]}
NAV = re.findall(
    r"^ +- [^:]+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.MULTILINE
)
DERIVATIONS = [
    DOCS / name
    for name in NAV
    if name.startswith("maths/") or name in ("backends.md", "equivariance.md")
]
CONCEPTS = {**DETERMINISTIC_KERNELS, **RANDOM_KERNELS, **LEARNED_KERNELS, **RELATIVES}


def page_name(page: Path) -> str:
    return str(page.relative_to(DOCS))


def code_files(page: Path) -> list[str]:
    """Return the source files in the line `Code:` of a page."""
    line = re.search(r"^Code: (.*?)\n\n", TEXTS[page], flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`]+\.py)`", line[1]) if line else []


def heading_anchors(page: Path) -> set[str]:
    """Return the anchors that Python-Markdown makes of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", TEXTS[page], flags=re.MULTILINE)
    plain = [
        re.sub(r"[^\w\s-]", "", heading.encode("ascii", "ignore").decode()).strip().lower()
        for heading in headings
    ]
    return {re.sub(r"[-\s]+", "-", heading) for heading in plain}


def test_navigation_lists_every_page_once():
    notebooks = [page_name(path.with_suffix(".md")) for path in DOCS.rglob("*.ipynb")]
    assert sorted(NAV) == sorted([*map(page_name, PAGES), *notebooks])


@pytest.mark.parametrize("concept", CONCEPTS)
def test_every_kernel_has_a_page(concept):
    file = CONCEPTS[concept].__module__.removeprefix("teka.").replace(".", "/") + ".py"
    pages = [page for page in DERIVATIONS if file in code_files(page)]
    assert pages, f"no page says `Code: {file}`"
    namesake = DOCS / "maths" / f"{concept}.md"
    assert namesake in pages or not namesake.exists()
    assert f"`{concept}`" in TEXTS[DOCS / "kernels.md"]


@pytest.mark.parametrize("page", DERIVATIONS, ids=page_name)
def test_math_pages_name_existing_files_and_sources(page):
    for file in code_files(page):
        assert (PACKAGE / file).is_file(), f"{page_name(page)} names {file}"
    assert re.search(r"\n## Sources\n\n- [^#]+$", TEXTS[page])


def test_internal_links_resolve():
    notebooks = {path: path.read_text(encoding="utf-8") for path in DOCS.rglob("*.ipynb")}
    for page, text in {**TEXTS, **notebooks}.items():
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text):
            file = (page.parent / target).resolve() if target else page
            assert file.exists(), f"{page} links to {target}"
            assert not anchor or anchor in heading_anchors(file), (
                f"{page} links to {target}#{anchor}"
            )


def test_code_fits_the_width_of_a_page():
    for page in PAGES:
        for code in re.findall(r"^```\w+\n(.*?)^```", TEXTS[page], re.MULTILINE | re.DOTALL):
            assert [line for line in code.splitlines() if len(line) > 88] == [], page_name(page)


def test_formulas_are_closed():
    for page in PAGES:
        text = re.sub(r"```.*?```|`[^`\n]*`", "", TEXTS[page], flags=re.DOTALL)
        displays = text.split("$$")
        assert len(displays) % 2 == 1, page_name(page)
        for paragraph in "\n\n".join(displays[::2]).split("\n\n"):
            assert paragraph.count("$") % 2 == 0, paragraph
        for formula in displays[1::2]:
            assert formula.count(r"\left") == formula.count(r"\right"), formula
            assert formula.count("{") == formula.count("}"), formula


def run_code(page: str) -> dict[str, Any]:
    """Run the Python code of a page from top to bottom, and return its variables."""
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", TEXTS[DOCS / page], flags=re.DOTALL):
        exec(compile(block, page, "exec"), names)
    return names


def test_code_of_the_first_page_runs():
    assert run_code("index.md")["error"].maximum < 1e-5


@pytest.mark.parametrize(
    "page",
    [page for page in map(page_name, DERIVATIONS) if "```python" in TEXTS[DOCS / page]]
    + ["kernels.md"],
)
def test_code_of_concept_pages_runs(page):
    assert run_code(page)


@pytest.mark.parametrize(
    "page",
    [
        "audit.md",
        "audit_layers.md",
        "audit_models.md",
        "audit_movement.md",
        "audit_statistics.md",
        "fix.md",
    ],
)
def test_code_of_audit_pages_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the code writes files
    assert run_code(page)


@pytest.mark.parametrize(
    "page",
    [
        *(
            f"api/{name}.md"
            for name in ("audit", "convert", "data", "functional", "nn", "training")
        ),
        "data.md",
        "model_files.md",
        "training.md",
        "which_kernel.md",
    ],
)
def test_code_of_how_to_and_reference_pages_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the code writes files
    assert run_code(page)


def test_reference_lists_every_command():
    for command, (_, purpose) in COMMANDS.items():
        assert f"| `teka {command}` | {purpose} |\n" in TEXTS[DOCS / "api" / "cli.md"]


def test_reference_entries_exist_and_have_docstrings():
    reference = "".join(text for page, text in TEXTS.items() if page.parent == DOCS / "api")
    paths = re.findall(r"^::: (\S+)$", reference, flags=re.MULTILINE)
    assert len(set(paths)) == len(paths) > 100
    for path in paths:
        module, _, attribute = path.rpartition(".")
        value = getattr(importlib.import_module(module), attribute, None)
        assert value is not None, path
        assert value.__doc__, path


def test_custom_kernel_example_is_accurate(capsys: pytest.CaptureFixture[str]):
    names = run_code("your_own_kernel.md")
    printed = [float(number) for number in capsys.readouterr().out.split()]
    assert len(printed) == 6
    assert max(printed) < 1e-12
    inputs = names["query"], names["key"], names["value"]
    ours, theirs = (
        functional.attention(*inputs, kernel=kernel)
        for kernel in (names["kernel"], functional.TrigonometricFeatures(names["normal"]))
    )
    torch.testing.assert_close(ours, theirs)
    assert names["output"].shape == (2, 64, 64)


def test_every_system_of_the_papers_has_code_and_tests():
    """Check that the second column names code or a command, and the last column a test file."""
    rows = re.findall(
        r"^\| (?!method|-)[^|]+\| ([^|]+) \| `([^|`]+)` \|$",
        TEXTS[DOCS / "papers.md"],
        re.MULTILINE,
    )
    assert len(rows) > 50
    for run, test in rows:
        assert (ROOT / "tests" / f"{test}.py").is_file(), test
        for code in re.findall(r"`([^`]+)`", run):
            if code.startswith(("teka ", "python -m reproduction ")):
                words = shlex.split(code.removeprefix("python -m "))[1:]
                make_reproduction_app().parse_args(words, print_error=False, exit_on_error=False)
            elif code.startswith("teka."):
                package, names = teka, code.partition("(")[0].split(".")[1:]
                for place, part in enumerate(names):
                    if not hasattr(package, part):
                        importlib.import_module(".".join(["teka", *names[: place + 1]]))
                    package = getattr(package, part)


# Formulas and numbers of the pages and of the docstrings.

angle = st.floats(-3, 3)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def encode(position: float, frequency: float) -> Tensor:
    return torch.tensor(
        [math.sin(frequency * position), math.cos(frequency * position)], dtype=torch.float64
    )


@given(angle, angle, angle, angle, angle)
def test_lemma_1_holds_for_query_key_products(alpha, beta, frequency, query_position, key_position):
    matrix = torch.tensor([[alpha, beta], [-beta, alpha]], dtype=torch.float64)
    phase = frequency * (query_position - key_position)
    product = encode(query_position, frequency) @ matrix @ encode(key_position, frequency)
    assert float(product) == pytest.approx(
        alpha * math.cos(phase) + beta * math.sin(phase), abs=1e-12
    )


def test_lemma_1_fails_for_transposed_products():
    rotation = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    key = torch.diag(torch.tensor([1.0, 2.0], dtype=torch.float64))
    query = (rotation @ key.inverse()).T
    torch.testing.assert_close(query.T @ key, rotation)
    matrix = query @ key.T
    assert sorted([float(matrix[0, 1]), float(matrix[1, 0])]) == [-2.0, 0.5]
    before, after = (
        encode(0.3 + shift, 1.0) @ matrix @ encode(0.8 + shift, 1.0) for shift in (0.0, 1.0)
    )
    assert abs(float(before - after)) > 0.1


@given(st.floats(-1, 1), st.floats(-1, 1))
def test_shift_rotates_the_draw_of_the_joint_form(shift, alpha):
    matrix = torch.tensor([[alpha, 0.7], [-0.7, alpha]], dtype=torch.float64)
    cosine, sine = math.cos(shift), math.sin(shift)
    rotation = torch.tensor([[cosine, -sine], [sine, cosine]], dtype=torch.float64)
    draw = torch.tensor([0.4, -1.3], dtype=torch.float64)
    shifted_positions = (encode(0.2 + shift, 1.0) @ matrix + encode(1.1 + shift, 1.0)) @ draw
    rotated_draw = (encode(0.2, 1.0) @ matrix + encode(1.1, 1.0)) @ (rotation @ draw)
    assert float(shifted_positions) == pytest.approx(float(rotated_draw), abs=1e-12)


def moments_by_quadrature(estimate) -> tuple[float, float]:
    """Return E[f(w)] and E[f(w)²] for w ~ N(0, 1) by the trapezoidal rule on [−14, 14]."""
    draws = torch.linspace(-14, 14, 40_001, dtype=torch.float64)
    density = torch.exp(-draws.square() / 2) / math.sqrt(2 * math.pi) * (draws[1] - draws[0])
    values = estimate(draws)
    return float((values * density).sum()), float((values.square() * density).sum())


@given(angle.map(lambda x: x / 2), angle.map(lambda y: y / 2))
def test_means_and_variances_of_random_features(x, y):
    kernel, near, far = math.exp(x * y), (x - y) ** 2, (x + y) ** 2
    size = (x * x + y * y) / 2
    coefficient = -0.15
    rho = 1 / (1 - 8 * coefficient)
    slope = math.sqrt(1 - 4 * coefficient)
    cases = [
        (lambda w: torch.exp(w * (x + y) - size), math.exp(far)),
        (
            lambda w: torch.cosh(w * (x + y)) * math.exp(-size),
            1 + math.exp(-far) * math.expm1(far) ** 2 / 2,
        ),
        (
            lambda w: torch.cos(w * (x - y)) * math.exp(size),
            1 + math.exp(near) * math.expm1(-near) ** 2 / 2,
        ),
        (
            lambda w: slope * torch.exp(2 * coefficient * w.square() + slope * w * (x + y) - size),
            (1 + rho) / 2 * rho**-0.5 * math.exp(rho * far),
        ),
    ]
    for estimate, square in cases:
        mean, mean_square = moments_by_quadrature(estimate)
        assert mean == pytest.approx(kernel, rel=1e-9)
        assert mean_square == pytest.approx(kernel**2 * square, rel=1e-9)


def test_draws_of_fixed_norm_underestimate_the_kernel():
    dim, square = (
        3,
        5.0,
    )  # in three dimensions one coordinate of a uniform direction is uniform on [−1, 1]
    root = math.sqrt(dim * square)
    terms = [
        (square / 2) ** n / math.factorial(n) * dim**n / math.prod(range(dim, dim + 2 * n, 2))
        for n in range(60)
    ]
    assert sum(terms) == pytest.approx(math.sinh(root) / root, rel=1e-12)
    assert sum(terms) < math.exp(square / 2)


def test_best_key_shift_is_the_sum_of_the_means():
    x, y = normal(7, 3), normal(5, 3, seed=1) + 2

    def spread(shift: Tensor) -> float:
        return float((x[:, None] + y[None] - shift).square().sum(-1).mean())

    best = x.mean(0) + y.mean(0)
    variances = (x - x.mean(0)).square().sum(-1).mean() + (y - y.mean(0)).square().sum(-1).mean()
    assert spread(best) == pytest.approx(float(variances))
    assert all(spread(best) < spread(best + step) for step in 0.1 * normal(20, 3, seed=2))


def test_taylor_2_error_and_features_equal_the_stated_values():
    logit = torch.linspace(-1, 1, 1001, dtype=torch.float64)
    kernel = 1 + logit + logit.square() / 2
    assert float(kernel.min()) == pytest.approx(0.5)
    assert float((kernel - logit.exp()).abs().max()) == pytest.approx(0.218, abs=5e-4)
    x, y = normal(2, 16)
    pairs = list(combinations(range(16), 2))
    features = [
        torch.stack([v[a] * v[b] for a, b in pairs] + [*(v.square() / math.sqrt(2)), *v])
        for v in (x, y)
    ]
    assert 1 + len(features[0]) == 153
    assert float(1 + features[0] @ features[1]) == pytest.approx(
        float(1 + x @ y + (x @ y) ** 2 / 2)
    )


def test_fft_error_is_relative_to_the_largest_sum():
    side = 64
    offsets = torch.arange(side, dtype=torch.float64)
    kernel = torch.exp(-torch.minimum(offsets, side - offsets).square())
    values = torch.zeros(side, dtype=torch.float64)
    values[0] = 1.0
    actual = torch.fft.irfft(
        torch.fft.rfft(kernel.float()) * torch.fft.rfft(values.float()), n=side
    ).double()
    assert float((actual - kernel).abs().max()) < 1e-6
    # Beyond 20 cells, sums are at most e^−400 of the largest sum, which is 0 in float32.
    assert float(((actual - kernel).abs() / kernel)[20:26].min()) >= 1
