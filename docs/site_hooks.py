"""What MkDocs does not do by itself: formulas without scripts, files of the repository, tables."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
LINK = re.compile(r"\]\(((?:\.\./)+[^)#]+)\)")
README_PART = "<!-- from the README: figures -->"
#: Pages that lie outside docs/, where a repository has them, and their names in the site.
OUTSIDE = {"SECURITY.md": "security.md"}


def on_files(files: Any, *, config: Any) -> None:
    """Make the pages outside docs/ pages of the site; one that is only linked has no frame."""
    for source, name in OUTSIDE.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Put in the README's tables; let links out of docs/ lead to a copy of the file."""
    if README_PART in markdown:
        readme = (ROOT / "README.md").read_text("utf-8")
        part = readme.split("<!-- figures: begin -->")[1].split("<!-- figures: end -->")[0]
        markdown = markdown.replace(README_PART, part)

    def copied(found: re.Match[str]) -> str:
        target = (Path(page.file.abs_src_path).parent / found[1]).resolve()
        inside = target.is_relative_to(config.docs_dir)
        if inside or not (target.is_file() and target.is_relative_to(ROOT)):
            return found[0]
        source = target.relative_to(ROOT).as_posix()
        if target.suffix == ".md" and source not in OUTSIDE:
            return found[0]  # MkDocs warns of it: a page has to be named above
        name = OUTSIDE.get(source, f"source/{source}")
        if files.get_file_from_path(name) is None:
            files.append(File.generated(config, name, abs_src_path=str(target)))
        return f"]({'../' * page.file.src_uri.count('/')}{name})"

    return LINK.sub(copied, markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Turn formulas into MathML, which browsers draw by themselves."""
    return FORMULA.sub(_mathml, content)


def _mathml(found: re.Match[str]) -> str:
    display = "block" if found[1] == "div" else "inline"
    return str(convert(html.unescape(found[2]).strip(), display=display))
