"""The `similarity` verb: compare the layers of one or two models, and measure how contextual they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pretune.runtime.output_paths import check_resumable_folder
from pretune.verbs import options as opt
from pretune.verbs.option_modes import TEXT_COLUMN_RULE
from pretune.verbs.results import ResultTable
from pretune.verbs.verb import verb

MAX_WORDS = 3000  # words that are compared


@verb(TEXT_COLUMN_RULE, out=check_resumable_folder("similarity.json", "an analysis of similarity"))
def similarity(
    model: opt.Model,
    inputs: opt.TextInputs,
    *,
    other: str | Path | opt.ModelHandle | None = None,
    text: opt.Text = None,
    method: Literal["cka", "debiased-cka", "svcca"] = "cka",
    level: Literal["text", "word"] = "text",
    max_texts: int = 1000,
    out: opt.AnalysisFolder = None,
    ignore_mismatched: opt.IgnoreMismatched = False,
) -> ResultTable:
    """Compare the representations of texts in all layers of a model, with each other or with those of another model.

    The result has one row per layer: its similarity to each layer of the other model, its anisotropy (the mean cosine of random
    words), and the self-similarity of words (the mean cosine of the same word in different texts). Layer 0 is the embeddings.

    Parameters
    ----------
    other
        Model to compare with; by default the layers of the model are compared with each other.
    method
        Measure of similarity: linear CKA, CKA without the bias that few texts cause, or SVCCA (the mean canonical correlation).
    level
        Compare the vectors of texts (means over tokens), or those of words, which are aligned between different tokenizers.
    max_texts
        Number of texts to read, at most.

    Examples
    --------
    >>> texts = ["It rains.", "He sleeps.", "We ate soup.", "They won the game.", "A dog barked."]
    >>> layers = similarity("pretune-small-en", texts)
    >>> len(layers), layers[3]["similarity"][3]
    (11, 1.0)
    """
    import os

    import numpy as np

    from pretune.models.loading import load
    from pretune.probing.anisotropy import mean_cosine, self_similarity
    from pretune.probing.layer_vectors import LayerVectors, layer_vectors, shared_words
    from pretune.probing.representation_similarity import check_items, matrix_rows, similarity_matrix
    from pretune.runtime.errors import PretuneError
    from pretune.runtime.progress import log_info
    from pretune.verbs.shared_inputs import open_reference, read_texts

    if max_texts < 1:
        raise PretuneError(f"--max-texts {max_texts}: at least one text must be read; choose a larger number")
    read = [item.text for item in read_texts(inputs, text)]
    texts = [one for one in read if one.strip()][:max_texts]
    if len(texts) < len(read):
        log_info(f"{len(texts)} of {len(read)} texts are compared; blank ones and those above --max-texts are left out")
    if level == "text":
        check_items(len(texts))
    references = [open_reference(one) for one in (model, other) if one is not None]
    found = [layer_vectors(load(one, ignore_mismatched=ignore_mismatched), texts) for one in references]
    names = [os.path.basename(str(one).rstrip("/")) or str(one) for one in references]

    def rounded(value: float) -> float | None:
        return None if np.isnan(value) else round(float(value), 4)

    def describe(vectors: LayerVectors) -> list[dict[str, Any]]:
        owners = vectors.word_keys[:, 0]
        return [
            {
                "layer": layer,
                "anisotropy": rounded(mean_cosine(words)),
                "self_similarity": rounded(self_similarity(words, vectors.spelled, owners)),
                "text_anisotropy": rounded(mean_cosine(vectors.texts[layer])),
            }
            for layer, words in enumerate(vectors.words)
        ]

    described = [describe(vectors) for vectors in found]
    if level == "word":
        pair = shared_words(found[0], found[-1]) if other is not None else (found[0], found[0])
        count = len(pair[0].spelled)
        check_items(count)
        some = np.sort(np.random.default_rng(0).permutation(count)[:MAX_WORDS])
        taken = [vectors.take_words(some).words for vectors in pair]
    else:
        taken = [vectors.texts for vectors in found]
    items, width = taken[0][0].shape
    if method != "debiased-cka" and items < 2 * width:
        log_info(
            f"{items} {level}s are few for representations of width {width}, which raises the similarities; give more, or use "
            "--method debiased-cka"
        )
    matrix = similarity_matrix(taken[0], taken[-1] if other is not None else taken[0], method)
    rows = [
        {**row, "similarity": [rounded(value) for value in values]}
        for row, values in zip(described[0], matrix, strict=True)
    ]
    facts: dict[str, Any] = {"model": names[0], "other": names[-1], "method": method, f"{level}s": items}
    if other is not None:
        facts["other_layers"] = described[1]
    if out is not None:
        layers = dict(zip(labels(names), described, strict=True))
        facts["files"] = write_report(Path(out), names, method, matrix, matrix_rows(matrix), layers)
        facts["folder"] = str(out)
    return ResultTable("layers", rows, facts=facts)


def labels(names: list[str]) -> list[str]:
    """Return the names of one or two models, numbered if they are the same.

    >>> labels(["a", "a"]), labels(["a"])
    (['a (1)', 'a (2)'], ['a'])
    """
    return [f"{name} ({number})" for number, name in enumerate(names, 1)] if len(set(names)) < len(names) else names


def write_report(
    folder: Path, names: list[str], method: str, matrix: Any, cells: list[dict[str, Any]], layers: dict[str, Any]
) -> list[str]:
    """Write the similarity matrix and per-layer values as tables, figures, and report.html; return the file names.

    `names` are the names of the models, `cells` the entries of the matrix as rows of a table, and `layers` has, by the
    name of the model, its values per layer.
    """
    from pretune.probing.report_folder import ReportFolder
    from pretune.probing.similarity_figures import draw_layer_values, draw_similarity
    from pretune.runtime.figures import figure_fonts

    measure = {"cka": "linear CKA", "debiased-cka": "debiased CKA", "svcca": "SVCCA, mean correlation"}[method]
    report = ReportFolder(folder, f"Layers of {' and '.join(layers)}")
    with figure_fonts(names):
        note = (
            "1 for layers that differ only by a rotation and a scale, 0 for unrelated ones. Layer 0 is the embeddings."
        )
        report.add_figure(
            "similarity", draw_similarity(matrix, measure, names[0], names[-1]), "Similarity of layers", note
        )
        titles = {
            "anisotropy": "random words (anisotropy)",
            "self_similarity": "same word (self-similarity)",
            "text_anisotropy": "random texts",
        }
        lines = {
            name: {title: [row[key] for row in rows] for key, title in titles.items()} for name, rows in layers.items()
        }
        notes = (
            "The cosine of random words is the anisotropy: well above 0, all vectors of a layer point in similar directions. The gap "
            "to the same word in different texts shows how much a layer depends on the word itself; where it is small, the context decides."
        )
        report.add_figure("layers", draw_layer_values(lines, "mean cosine"), "How contextual layers are", notes)
        rows = [{"model": name, **row} for name, own in layers.items() for row in own]
        report.add_table("layers", rows, "Values of all layers")
        report.add_table("similarity", cells, "Similarity of all pairs of layers")
        return report.finish()
