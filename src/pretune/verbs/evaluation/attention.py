"""The `attention` verb: draw and measure the attention heads of a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pretune.runtime.output_paths import check_resumable_folder
from pretune.verbs import options as opt
from pretune.verbs.option_modes import reads_tables
from pretune.verbs.results import ResultTable
from pretune.verbs.verb import Options, only, verb

SHOWN = 24  # heads that are printed in the terminal
MAX_UNITS = 80  # words of a text that are drawn
MAX_LENGTH = 128  # tokens of an example on which the importance of heads is measured


def has_columns(o: Options) -> bool:
    """Return whether --text can apply with the options `o`: whether an input is a table, or --importance is given."""
    return o.importance is not None or reads_tables(o)


@verb(
    only("text", where="to tables, not to texts and .txt files", when=has_columns),
    only("head", "target", where="with --out", when=lambda o: o.out is not None),
    only("label", where="with --importance", when=lambda o: o.importance is not None),
    out=check_resumable_folder("heads.json", "an analysis of attention"),
)
def attention(
    model: opt.Model,
    inputs: opt.TextInputs,
    *,
    text: opt.Text = None,
    head: Sequence[str] = (),
    tokens: bool = False,
    importance: str | Path | opt.Table | None = None,
    label: opt.Label = None,
    target: str | None = None,
    out: opt.AnalysisFolder = None,
    ignore_mismatched: opt.IgnoreMismatched = False,
) -> ResultTable:
    """Draw the attention heads of a Transformer for a text, and measure what each head attends to over all texts.

    For each head, the table has the entropy of its attention, the mean distance to the words it attends to, and the
    shares of attention to special tokens and to the previous, the next, and the same word. Weights of subword tokens
    are merged to words. With --out, the table, figures of the first text, and report.html are written to a folder. For
    an encoder-decoder, the heads of the encoder are measured.

    Parameters
    ----------
    head
        Heads to enlarge, as LAYER.HEAD counted from 1, such as 3.7: a heat map with words, and arcs between them.
    tokens
        Show subword tokens instead of words.
    importance
        File on which to measure the importance of each head, the change of the loss when the head is masked: labeled examples
        for a fine-tuned model, texts for a pretrained one.
    target
        Target text, such as a translation, of the first text; draws the cross-attention of an encoder-decoder as an alignment.

    Examples
    --------
    >>> heads = attention("pretune-small-en", "The cat sat on the mat.")
    >>> len(heads), list(heads[0])[:3]
    (40, ['layer', 'head', 'entropy'])
    """
    from pretune.models.loading import load
    from pretune.probing.attention_maps import attention_maps, check_head, parse_head
    from pretune.probing.head_importance import head_importance, heads_per_layer
    from pretune.probing.head_statistics import head_statistics
    from pretune.runtime.errors import PretuneError
    from pretune.runtime.progress import log_info
    from pretune.verbs.shared_inputs import as_path, open_reference, read_texts

    chosen = [parse_head(name) for name in ([head] if isinstance(head, str) else head)]
    reference = open_reference(model)
    texts = [item.text for item in read_texts(inputs, text)]
    blank = sum(not one.strip() for one in texts)
    if blank == len(texts):
        raise PretuneError("all texts are blank, so there is nothing to attend to; give a text with words")
    if blank:
        log_info(f"{blank} of {len(texts)} texts are blank and are left out")
        texts = [one for one in texts if one.strip()]
    loaded = load(reference, ignore_mismatched=ignore_mismatched)
    loaded.require_tokenizer()
    for layer, number in chosen:
        check_head(layer, number, heads_per_layer(loaded))
    aligned = None
    if target is not None:
        from pretune.inference.generation.translate import Translator

        aligned = Translator.load([reference], ignore_mismatched=ignore_mismatched).align_target(texts[0], target)
    first: list[Any] = []

    def keep_first() -> Any:
        for row, one in attention_maps(loaded, texts, tokens):
            if row == 0:
                first.append(one)
            yield one

    rows = head_statistics(keep_first())
    facts: dict[str, Any] = {"texts": len(texts)}
    if importance is not None:
        from pretune.inference.example_loss import ExampleLoss

        examples = ExampleLoss.read(loaded, reference, Path(as_path(importance)), text, label, MAX_LENGTH)
        facts["loss"], found = head_importance(loaded, examples.mean)
        for row, measured in zip(rows, found, strict=True):
            row["importance"] = round(measured["importance"], 6)
    if out is not None:
        facts["files"] = write_report(Path(out), str(reference), first[0], rows, chosen, aligned)
        facts["folder"] = str(out)
    return ResultTable("heads", rows, shown=SHOWN if len(rows) > SHOWN else None, facts=facts)


def write_report(
    folder: Path, name: str, one: Any, rows: list[dict[str, Any]], heads: Sequence[tuple[int, int]], aligned: Any
) -> list[str]:
    """Write the table of heads, the figures of an attention map, and report.html to a folder; return the file names.

    `one` is the attention map, `rows` is the table, `heads` are the heads to enlarge, and `aligned` is the word
    alignment of an encoder-decoder, or None.
    """
    from pretune.inference.attention_alignment import alignment_figure
    from pretune.probing.attention_figures import FAINTEST, draw_head, draw_head_grid, draw_head_values
    from pretune.probing.head_statistics import STATISTICS, UNITS
    from pretune.probing.report_folder import ReportFolder
    from pretune.runtime.figures import figure_fonts
    from pretune.runtime.progress import log_info

    if len(one.units) > MAX_UNITS:
        log_info(f"the first text has {len(one.units)} words, of which the figures show {MAX_UNITS}")
        one = one.first(MAX_UNITS)
    words = [*one.units, one.text, *(() if aligned is None else (*aligned.source, *aligned.target))]
    report = ReportFolder(folder, f"Attention of {name}")
    with figure_fonts(words):
        report.add_text("Text", one.text)
        for layer, head in heads:
            title = f"Layer {layer}, head {head}"
            note = f"Arcs go from each word to those that it attends to with a weight of {FAINTEST:g} or more."
            report.add_figure(f"head-{layer}.{head}", draw_head(one, layer, head), title, note)
        if aligned is not None:
            note = "Each word of the target (row) attends to words of the source (columns): the mean over the heads of a layer."
            report.add_figure("alignment", alignment_figure([aligned]), "Alignment", note)
        report.add_figure("heads", draw_head_grid(one), "All heads")
        notes = [f"{name}: {about}." for name, about in STATISTICS.items()]
        report.add_figure("statistics", draw_head_values(rows, UNITS), "What heads attend to", *notes)
        if "importance" in rows[0]:
            note = "The change of the loss when the head is masked: positive if the model needs it."
            figure = draw_head_values(rows, {"importance": "change of the loss"}, diverging=True)
            report.add_figure("importance", figure, "Importance of heads", note)
        report.add_table("heads", rows, "All values")
        return report.finish()
