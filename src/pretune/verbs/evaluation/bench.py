"""The `bench` verb: compare the speed of a model's inference with that of transformers and ONNX Runtime."""

from __future__ import annotations

from pretune.verbs import options as opt
from pretune.verbs.option_modes import TEXT_COLUMN_RULE
from pretune.verbs.results import ResultTable
from pretune.verbs.verb import verb


@verb(TEXT_COLUMN_RULE)
def bench(
    model: opt.Model,
    inputs: opt.TextInputs = (),
    *,
    text: opt.Text = None,
    seconds: float = 20.0,
    max_texts: int = 256,
    threads: int | None = None,
    ignore_mismatched: opt.IgnoreMismatched = False,
) -> ResultTable:
    """Measure latency and throughput of a model on a CPU, beside transformers and ONNX Runtime on the same texts.

    Latency is that of one text at a time (p50 and p99 in milliseconds), and throughput that of all texts together: with
    pretune in batches of similar length, with the others in padded batches of 32. All methods start from texts, and run
    in turn. Ratios compare each method with the first one; `difference` is the largest difference of outputs, relative
    to the largest output. The int8 rows are the model's, quantized dynamically. Methods that are not installed or
    cannot run the model are left out, with a message.

    Without inputs, the texts are customer messages from the package.

    Parameters
    ----------
    seconds
        Time to measure, after loading and a warmup; at least three rounds are measured.
    max_texts
        Number of texts to measure, at most.
    threads
        Number of threads for all methods; by default one per core.

    Examples
    --------
    >>> table = bench("runs/task", seconds=5)  # doctest: +SKIP
    >>> [row["method"] for row in table]  # doctest: +SKIP
    ['transformers, fp32', 'pretune', 'ONNX Runtime, fp32', 'pretune, engine onnxruntime', 'ONNX Runtime, int8', 'pretune, int8']
    """
    import os
    from pathlib import Path
    from tempfile import TemporaryDirectory

    import torch

    from pretune.compression.speed_comparison import describe, list_methods, measure
    from pretune.models.open_model import OpenModel
    from pretune.runtime.cpu_features import cpu_model, int8_instructions
    from pretune.runtime.errors import PretuneError
    from pretune.runtime.progress import log_info, progress
    from pretune.sample_data import example
    from pretune.verbs.shared_inputs import open_reference, read_texts

    for name, value in (
        ("--seconds", seconds),
        ("--max-texts", max_texts),
        ("--threads", 1 if threads is None else threads),
    ):
        if value <= 0:
            raise PretuneError(f"{name} {value}: the value must be greater than 0")
    opened = open_reference(model)
    opened = opened if isinstance(opened, OpenModel) else OpenModel(opened, ignore_mismatched=ignore_mismatched)
    read = [item.text for item in read_texts(inputs if inputs else [str(example("messages_test.csv"))], text)]
    texts = [one for one in read if one.strip()][:max_texts]
    if not texts:
        raise PretuneError("all texts are empty, so there is nothing to measure; give texts with words")
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        with TemporaryDirectory() as folder:
            left_out: list[str] = []
            methods = list_methods(opened, Path(folder), left_out.append)
            for line in left_out:
                log_info(line)
            load_before = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
            with progress("measuring", seconds) as bar:
                measure(methods, texts, seconds, bar)
            rows = describe(methods, texts)
    finally:
        torch.set_num_threads(before)
    facts = {
        "texts": len(texts),
        "rounds": len(methods[0].together),
        "threads": threads or before,
        "cpu": cpu_model(),
        "int8_instructions": ", ".join(int8_instructions()) or "none",
        "load_average": load_before,
        **({"left_out": left_out} if left_out else {}),
    }
    return ResultTable("methods", rows, facts=facts)
