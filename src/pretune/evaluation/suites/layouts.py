"""The file formats in which suites are published, by name, and how a file of each is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pretune.evaluation.suites.conll_formats import read_coreference_2012, read_roles_2005, read_roles_2012
from pretune.evaluation.suites.decanlp_formats import DECANLP
from pretune.evaluation.suites.file_formats import READERS, Rows, read_parallel_lines, read_table
from pretune.evaluation.suites.translation_formats import read_parallel
from pretune.runtime.errors import PretuneError

SEVERAL: dict[str, Callable[[Sequence[Path]], Rows]] = {  # readers of one file, or of several with parallel lines
    "lines": read_parallel_lines,
    "parallel": read_parallel,
    "conll-2005": read_roles_2005,
    "conll-2012": read_roles_2012,
    "conll-2012-coreference": read_coreference_2012,
    **DECANLP,
}
TABLES = ("tsv", "csv")
LAYOUTS = (*TABLES, *SEVERAL, *READERS)  # all names of formats


def read_layout(paths: Sequence[Path], layout: str, header: bool) -> Rows:
    """Yield (place such as "line 3", row) for each row of files in the format `layout`.

    With `header`, the first row of a table has the names of its columns. Only parallel texts can have several files.
    """
    if layout in SEVERAL:
        return SEVERAL[layout](paths)
    if len(paths) > 1:
        raise PretuneError(
            f"{paths[0]}: several files with parallel lines must be plain text files, not {layout} files; give a single file"
        )
    if layout in TABLES:
        return read_table(paths[0], header, tabs=layout == "tsv")
    return READERS[layout](paths[0])


def layout_of(path: Path) -> str:
    """Return the name of a file's format: its suffix, or "folders" for a folder.

    >>> layout_of(Path("dev.tsv"))
    'tsv'
    """
    return "folders" if path.is_dir() else path.suffix.lstrip(".")
