"""A hook of mkdocs that adds CONTRIBUTING.md and CHANGELOG.md, which are outside of docs, to the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
ADDED = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages, with links as they are from within docs."""
    for source, target in ADDED.items():
        text = (ROOT / source).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, target, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Turn links to files in the root of the repository into links to their pages."""
    for source, target in ADDED.items():
        markdown = re.sub(rf"\]\(((?:\.\./)*)\.\./{re.escape(source)}", rf"](\g<1>{target}", markdown)
    return markdown
