"""Hooks of the documentation: formulas become MathML, notebooks become pages, results are copied."""

import html
import json
import re
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', flags=re.DOTALL)
# TeX's spacing where the converter has none: a thin space on either side of the name of a function next to a letter or
# number, and none behind the minus that begins an expression.
FUNCTION = "<mi>(?:cos|cosh|exp|log|max|min|sin)</mi>"
SPACE = '<mspace width="0.17em"/>'
SPACING = (
    (re.compile(rf"(</mi>|</mn>|</msub>|</msup>|</msubsup>)(?={FUNCTION})"), rf"\1{SPACE}"),
    (re.compile(rf"(?<!<msup>)(?<!<msub>)({FUNCTION})(?=<mi>|<mn>|<msub>|<msup>|<msubsup>|<mfrac>)"), rf"\1{SPACE}"),
    (re.compile(r"((?:<mrow>|<mo[^>]*>(?:&#x00028;|\(|\[|&#x0007B;|&#x0002C;|&#x0003D;)</mo>)<mo)(?=>&#x02212;)"),
     r'\1 form="prefix"'),
)  # fmt: skip
RECORDS = "reproduction/benchmarks"
VERSION = re.compile(r'^__version__ = "(.+)"$', flags=re.MULTILINE)


def on_config(config: MkDocsConfig) -> None:
    """Add the version of teka to the name of the site."""
    source = Path(config.config_file_path).with_name("src") / "teka" / "__init__.py"
    (version,) = VERSION.findall(source.read_text(encoding="utf-8"))
    config.site_name = f"teka {version}"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the notebooks as pages, and the result files of benchmarks."""
    root = Path(config.config_file_path).parent
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        page = notebook.src_uri.removesuffix(".ipynb") + ".md"
        files.append(
            File.generated(
                config, page, content=markdown_of_notebook(notebook.content_string, notebook.name)
            )
        )
    for record in sorted((root / RECORDS).glob("*.json")):
        files.append(
            File(f"{RECORDS}/{record.name}", str(root), config.site_dir, config.use_directory_urls)
        )
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to result files at their copies, and links to notebooks at their pages.

    Links to other files of `reproduction`, which the site does not contain, become text.
    """
    markdown = re.sub(
        r"\[([^\]]+)\]\((?:\.\./)+reproduction/(?!benchmarks/\w+\.json)[^)]*\)", r"\1", markdown
    )
    return markdown.replace(f"](../{RECORDS}/", f"]({RECORDS}/").replace(".ipynb)", ".md)")


def markdown_of_notebook(text: str, name: str) -> str:
    """Return a notebook as Markdown: text, code, output and a link to the notebook."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                picture = "".join(data["image/png"].split())
                parts.append(f"![Figure drawn by the code above](data:image/png;base64,{picture})")
            else:
                printed = "".join(output.get("text", data.get("text/plain", "")))
                parts.append(f"```{{.text .output}}\n{printed.rstrip()}\n```")
    parts.append(f'<a href="{name}.ipynb" download>This page as a notebook</a>')
    return "\n\n".join(parts)


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace formulas by MathML, and keep a number and its interval on one line.

    Raises:
        ValueError: The converter does not know a TeX command.
    """

    def mathml(match: re.Match[str]) -> str:
        formula = html.unescape(match[3])
        element = convert(formula, display="block" if match[2] == "[" else "inline")
        if "\\" in html.unescape(element):
            raise ValueError(f"{page.file.src_uri}: no MathML for {formula.strip()!r}")
        for pattern, replacement in SPACING:
            element = pattern.sub(replacement, element)
        return element

    return FORMULA.sub(mathml, content).replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")
