"""MkDocs hooks that convert formulas and notebooks, and copy result files into the site."""

import html
import json
import re
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', flags=re.DOTALL)
# The converter omits some spaces of TeX. Add a thin space between a function name and a letter or number, and mark a
# minus at the start of an expression as a sign.
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
    """Append the version of teka to the title of the site."""
    source = Path(config.config_file_path).with_name("src") / "teka" / "__init__.py"
    (version,) = VERSION.findall(source.read_text(encoding="utf-8"))
    config.site_name = f"teka {version}"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the notebooks and the results of the benchmarks to the files of the site.

    Each notebook becomes a Markdown page. The results are JSON files, which are copied.
    """
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
    """Adapt the links of a page to the files of the site.

    A link to a benchmark result points to its copy in the site, and a link to a notebook points to
    its page. The site has no other files of the folder `reproduction`, so links to them become text.
    """
    markdown = re.sub(
        r"\[([^\]]+)\]\((?:\.\./)+reproduction/(?!benchmarks/\w+\.json)[^)]*\)", r"\1", markdown
    )
    return markdown.replace(f"](../{RECORDS}/", f"]({RECORDS}/").replace(".ipynb)", ".md)")


def markdown_of_notebook(text: str, name: str) -> str:
    """Convert a notebook to Markdown with its text, code, output and a download link."""
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
    """Replace formulas by MathML, and prevent line breaks around the sign ±.

    Raises:
        ValueError: A formula contains a TeX command that the converter does not support.
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
