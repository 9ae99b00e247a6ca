"""The `probe` verb: measure what the layers of a model encode."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pretune.runtime.output_paths import check_resumable_folder
from pretune.verbs import options as opt
from pretune.verbs.results import ResultTable
from pretune.verbs.verb import verb


@verb(
    common=("suite", "data", "layers", "probe", "controls", "mdl", "max_examples", "out"),
    out=check_resumable_folder("probing.json", "a folder of probing results"),
)
def probe(
    model: opt.Model,
    *,
    suite: str | Path,
    data: str | Path | None = None,
    tasks: opt.Tasks = (),
    layers: Sequence[int] = (),
    pooling: Literal["mean", "cls", "max"] = "mean",
    probe: Literal["linear", "mlp"] = "linear",
    controls: bool = True,
    mdl: bool = False,
    num_seeds: int = 3,
    max_examples: int | None = None,
    cache: str | Path | None = None,
    seed: opt.Seed = 0,
    ignore_mismatched: opt.IgnoreMismatched = False,
    out: str | Path | None = None,
) -> ResultTable:
    """Measure what each layer of a model encodes: train classifiers on its frozen representations of texts or words.

    Each layer and a scalar mix of all layers are scored on the test set, with regularization chosen on the dev set, and
    compared with the majority class, a control task with random labels, and an untrained model of the same
    architecture. An interrupted command continues where it stopped.

    Parameters
    ----------
    suite
        Suite of tasks: senteval, rusenteval, treebank, morphology, edges, words-in-context, or table; or a file: a treebank, or
        a table with the columns text and label.
    data
        File or folder with the data of the suite.
    layers
        Layers to probe, from 0 (the embeddings) to the top; negative numbers count from the top. All by default.
    pooling
        How a text becomes a vector: mean of its tokens, first token (cls), or max. Spans are always the mean of their tokens.
    probe
        Classifier: linear (logistic regression), or mlp (one hidden layer).
    controls
        Train on random labels and on an untrained model, too.
    mdl
        Measure the minimum description length of the labels (online code), too.
    num_seeds
        Number of seeds of MLPs, scalar mixes, and control tasks; scores are means.
    max_examples
        Maximum number of examples per task.
    cache
        Folder to keep representations in, to share them between commands; by default a folder in --out.
    out
        Folder for scores.csv, scores.json, figures, and report.html; an interrupted command resumes there.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "question.csv"
    >>> lines = [f"{word} it {place}{end},{end}" for end in ".?" for place in range(20) for word in ("is", "was")]
    >>> _ = file.write_text("\\n".join(["text,label", *lines]))
    >>> found = probe("pretune-small-en", suite=file, layers=[0, -1], controls=False, num_seeds=1)
    >>> found[0]["task"], found[0]["accuracy"]
    ('question', 1.0)
    """
    from contextlib import ExitStack
    from dataclasses import asdict
    from tempfile import TemporaryDirectory

    from pretune.models.loading import load_model
    from pretune.probing.probes.layer_scores import ProbeSettings
    from pretune.probing.probing_job import ProbingJob, summary_rows
    from pretune.probing.suites import load_suite
    from pretune.runtime.errors import PretuneError, suggest
    from pretune.verbs.shared_inputs import model_reference, open_reference

    if num_seeds < 1:
        raise PretuneError(f"--num-seeds {num_seeds}: at least one seed is needed; choose a number above 0")
    if max_examples is not None and max_examples < 1:
        raise PretuneError(f"--max-examples {max_examples}: at least one example is needed; choose a number above 0")
    found = load_suite(str(suite), None if data is None else Path(data), max_examples, seed)
    for name in tasks:
        if name not in (known := [task.name for task in found]):
            raise PretuneError(f"--tasks {name}: the suite has no such task; {suggest(name, known)}")
    if tasks:
        found = [task for task in found if task.name in tasks]
    opened = load_model(open_reference(model), ignore_mismatched=ignore_mismatched)
    settings = ProbeSettings(probe, controls, mdl, num_seeds, seed)
    with ExitStack() as stack:
        folder = Path(out if out is not None else stack.enter_context(TemporaryDirectory()))
        stored = None if cache is None else Path(cache)
        job = ProbingJob(opened, model_reference(model), found, folder, settings, pooling, layers, stored)
        scores = job.run()
    rows = [{**row, "layers": asdict(task)["layers"]} for row, task in zip(summary_rows(scores), scores, strict=True)]
    facts = {} if out is None else {"report": str(Path(out) / "report.html")}
    return ResultTable("tasks", rows, hidden=("layers", "group", "classes"), facts=facts)
