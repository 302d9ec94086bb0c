"""Hooks of the docs' build: formulae become MathML, which browsers show without scripts; measured records go along."""

import html
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
RECORDS = "benchmarks"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the records that the results come from, which lie beside the docs' folder."""
    root = Path(config.config_file_path).parent
    for record in sorted((root / RECORDS).glob("*.json")):
        files.append(File(f"{RECORDS}/{record.name}", str(root), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to the records at their copies."""
    return markdown.replace(f"](../{RECORDS}/", f"]({RECORDS}/")


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace every formula by its MathML.

    Raises:
        ValueError: A command that the converter does not know: it would stand in the text with its backslash.
    """

    def mathml(match: re.Match[str]) -> str:
        formula = html.unescape(match[3])
        element = convert(formula, display="block" if match[2] == "[" else "inline")
        if "\\" in html.unescape(element):
            raise ValueError(f"{page.file.src_uri}: no MathML for {formula.strip()!r}")
        for pattern, replacement in SPACING:
            element = pattern.sub(replacement, element)
        return element

    return FORMULA.sub(mathml, content)
