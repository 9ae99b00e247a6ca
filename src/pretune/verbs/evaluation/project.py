"""The `project` verb: project the embeddings of texts to the plane."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pretune.runtime.output_paths import check_resumable_folder
from pretune.verbs import options as opt
from pretune.verbs.option_modes import TEXT_COLUMN_RULE, reads_tables
from pretune.verbs.results import ResultTable
from pretune.verbs.verb import only, verb

SHOWN = 20  # texts that are printed in the terminal


@verb(
    TEXT_COLUMN_RULE,
    only("color", where="to tables, not to texts and .txt files", when=reads_tables),
    only("seed", where="to --method tsne", when=lambda o: o.method == "tsne"),
    out=check_resumable_folder("projection.json", "a projection"),
)
def project(
    model: opt.Model,
    inputs: opt.TextInputs,
    *,
    color: str | None = None,
    text: opt.Text = None,
    method: Literal["pca", "tsne"] = "pca",
    layer: int | None = None,
    pooling: opt.Pooling = None,
    out: str | Path | None = None,
    seed: opt.Seed = 0,
    ignore_mismatched: opt.IgnoreMismatched = False,
) -> ResultTable:
    """Project the embeddings of texts to the plane by PCA or t-SNE, and draw them in the colors of a column.

    PCA keeps the directions of largest variance. t-SNE keeps similar texts close to each other; the distances between its groups,
    and the sizes of the groups, mean nothing.

    Parameters
    ----------
    color
        Column that colors the points: a few different values as categories, many numbers as a scale.
    method
        Method of projection.
    layer
        Layer whose embeddings are projected: 0 for the token embeddings; the top layer by default.
    out
        Folder for projection.csv with the coordinates, the figure (.svg and .png), and report.html.

    Examples
    --------
    >>> points = project("pretune-small-en", ["It rains.", "It snows.", "He sleeps.", "She sleeps."])
    >>> len(points), list(points[0])
    (4, ['x', 'y', 'text'])
    """
    from pretune.inference.embed import TOP, embed_texts
    from pretune.probing.projection import project_vectors
    from pretune.runtime.progress import log_info
    from pretune.verbs.shared_inputs import open_reference, read_texts

    items = read_texts(inputs, text)
    values = read_column(items, color) if color is not None else [None] * len(items)
    kept = [place for place, item in enumerate(items) if item.text.strip()]
    if len(kept) < len(items):
        log_info(f"{len(items) - len(kept)} of {len(items)} texts are blank and are left out")
    texts, values = [items[place].text for place in kept], [values[place] for place in kept]
    reference = open_reference(model)
    vectors = embed_texts(reference, texts, pooling, TOP if layer is None else layer, ignore_mismatched)
    points, facts = project_vectors(vectors, method, seed)
    rows: list[dict[str, Any]] = [
        {"x": round(float(x), 5), "y": round(float(y), 5), "text": one, **({} if color is None else {"color": value})}
        for (x, y), one, value in zip(points, texts, values, strict=True)
    ]
    summary: dict[str, Any] = {"method": method, "texts": len(rows)}
    summary |= {name: round(value, 4) for name, value in facts.items()}
    if out is not None:
        from pretune.probing.report_folder import ReportFolder
        from pretune.probing.similarity_figures import draw_projection
        from pretune.runtime.figures import figure_fonts

        axes = ("t-SNE 1", "t-SNE 2")
        if method == "pca":
            shares = list(facts.values())
            axes = (f"component 1 ({shares[0]:.0%} of the variance)", f"component 2 ({shares[1]:.0%})")
        name = "top layer" if layer is None else f"layer {layer}"
        report = ReportFolder(Path(out), f"Texts in the embeddings of {reference}, {name}")
        with figure_fonts([*map(str, values), color or ""]):
            figure = draw_projection(points, None if color is None else values, color or "", axes)
            report.add_figure("projection", figure, "PCA" if method == "pca" else "t-SNE")
        report.add_table("projection", rows, "Coordinates")
        summary |= {"files": report.finish(), "folder": str(out)}
    return ResultTable("points", rows, shown=SHOWN if len(rows) > SHOWN else None, facts=summary)


def read_column(items: Any, column: str) -> list[Any]:
    """Return, for each text that was read from a table, the value of the column `column` in the text's row, in order.

    `items` has the texts with their files and line numbers. Raise an error that lists the existing columns if there is
    no such column.
    """
    from pretune.runtime.errors import PretuneError, suggest
    from pretune.text.examples.labeled import table_rows

    cells: dict[tuple[Path, int], Any] = {}
    for file in dict.fromkeys(item.file for item in items):
        if file.suffix.lower() == ".txt":
            raise PretuneError(
                f"{file}: a .txt file has no column {column!r} to color by; give tables, or leave out --color"
            )
        for number, (line, row) in enumerate(table_rows(file)):
            if number == 0 and column not in row:
                columns = ", ".join(map(repr, row))
                raise PretuneError(
                    f"{file}: no column {column!r} to color by; the columns are {columns}; {suggest(column, row)}"
                )
            cells[file, line] = row.get(column)
    return [cells[item.file, item.line] for item in items]
