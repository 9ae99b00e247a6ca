"""The `doctor` verb: check what this machine can run, and say how to get what is missing."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from pretune.runtime.optional_imports import installed_version
from pretune.verbs.results import ResultTable
from pretune.verbs.verb import verb

OK, SLOW, MISSING, FAILED = "ok", "slow", "missing", "failed"
EXTRAS = {  # what the optional dependencies are for
    "export": "ONNX export and ONNX Runtime",
    "cluster": "Ray clusters",
    "serve": "the HTTP server",
    "tune": "hyperparameter search",
    "eval": "translation metrics",
    "elmo": "published ELMo checkpoints",
    "vectors": "training word vectors",
    "languages": "keeping languages of a corpus",
    "pandas": "results as data frames",
    "tensorboard": "logs for TensorBoard",
    "wandb": "logs for Weights & Biases",
}
LEFT_OUT = ("all", "dev", "docs")  # extras that are not a feature: everything, and the tools of developers
LITTLE_DISK = LITTLE_MEMORY = 2e9  # bytes
TEST_TEXT = "The capital of France is [MASK]."
Row = dict[str, str]


@verb()
def doctor() -> ResultTable:
    """Check what this machine can run, and say how to get what is missing.

    The checks cover Python, torch, the device and its kernels, int8 and bf16 instructions, memory, disk, optional packages, and
    a prediction with the bundled model. Each is ok, slow (it works, but another machine is faster), missing (optional), or
    failed. The command exits with an error only if a check has failed.

    Examples
    --------
    >>> import pretune as pt
    >>> {row["check"]: row["status"] for row in pt.doctor()}["Python"]
    'ok'
    """
    rows = [*_software(), *_device(), *_arithmetic(), *_resources(), *_extras(), *_self_test()]
    failed = [row for row in rows if row["status"] == FAILED]
    failure = f"{failed[0]['check']} failed: {failed[0]['found']}; {failed[0]['advice']}" if failed else ""
    return ResultTable("checks", rows, failure=failure)


def _row(check: str, status: str, found: str, advice: str = "") -> Row:
    return {"check": check, "status": status, "found": found, "advice": advice}


def _software() -> Iterator[Row]:
    """Check the versions of pretune, Python, and torch; yield one row per check."""
    import torch

    import pretune

    yield _row("pretune", OK, f"{pretune.__version__}, {Path(pretune.__file__).parent}")
    yield _row("Python", OK, f"{platform.python_version()}, {platform.system()} {platform.machine()}, {sys.executable}")
    threads, cores = torch.get_num_threads(), os.cpu_count() or 1
    yield _row("torch", OK, f"{torch.__version__}, {threads} threads on {cores} cores")


def _device() -> Iterator[Row]:
    """Check the default device and its kernels; yield one row per check."""
    import torch

    from pretune.runtime.cpu_features import cpu_model
    from pretune.runtime.devices import choose_device

    device = choose_device()
    if device.type == "cpu":
        unused = "; its Apple GPU (MPS) is not used" if torch.backends.mps.is_available() else ""
        yield _row("device", SLOW, f"CPU, {cpu_model()}{unused}", "train on a CUDA GPU if the model is large")
        return
    count, name = torch.cuda.device_count(), torch.cuda.get_device_name(device)
    try:
        torch.ones(64, 64, device=device).matmul(torch.ones(64, 64, device=device)).sum().item()
    except RuntimeError as error:
        advice = "install a torch build for this GPU and its driver (pytorch.org), or run on the CPU"
        yield _row("device", FAILED, f"{name}: {error}", advice)
        return
    memory = torch.cuda.get_device_properties(device).total_memory
    yield _row("device", OK, f"{count} × {name}, {memory / 1e9:.0f} GB, CUDA {torch.version.cuda}")
    flash = torch.cuda.is_bf16_supported() and torch.backends.cuda.is_flash_attention_available()
    yield (
        _row("flash attention", OK, "available")
        if flash
        else _row("flash attention", SLOW, "not for this GPU", "use a GPU of the Ampere generation or newer")
    )
    triton = installed_version("triton")
    yield (
        _row("Triton kernels", MISSING, "not installed", "pip install triton")
        if triton is None
        else _row("Triton kernels", OK, f"Triton {triton}")
    )


def _arithmetic() -> Iterator[Row]:
    """Check whether the processor or GPU is fast with bf16, int8, and int4 numbers; yield one row per check."""
    import torch

    from pretune.nn.quantized.int8 import check_kind, choose_engine
    from pretune.runtime.cpu_features import bf16_instructions, int8_instructions
    from pretune.runtime.devices import choose_device
    from pretune.runtime.errors import PretuneError

    if choose_device().type == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
        yield _row("bf16", OK if fast else SLOW, "on the GPU" if fast else "emulated by the GPU")
    elif found := bf16_instructions():
        yield _row("bf16", OK, ", ".join(found))
    else:
        yield _row("bf16", SLOW, "no instructions of the processor", "use fp32, the default on a CPU")
    try:
        engine = choose_engine()
    except PretuneError as error:
        yield _row("int8", MISSING, str(error), "pip install 'pretune[export]'")
    else:
        if found := int8_instructions():
            yield _row("int8", OK, f"{', '.join(found)}; torch's engine {engine}")
        else:
            found_none = f"no dot-product instructions; torch's engine {engine}"
            yield _row("int8", SLOW, found_none, "expect smaller int8 models, but little speedup")
    try:
        check_kind("int4")
        yield _row("int4", OK, "torch's kernel for the CPU")
    except PretuneError as error:
        yield _row("int4", MISSING, str(error), "pip install --upgrade torch")


def _resources() -> Iterator[Row]:
    """Check memory, disk space, and pretune's cache folder; yield one row per check."""
    from pretune.runtime.devices import cache_folder

    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    little = total < LITTLE_MEMORY
    yield _row(
        "memory", SLOW if little else OK, f"{total / 1e9:.1f} GB", "use small models and batches" if little else ""
    )
    free = shutil.disk_usage(Path.cwd()).free
    little = free < LITTLE_DISK
    yield _row("disk", SLOW if little else OK, f"{free / 1e9:.1f} GB free here", "free some space" if little else "")
    folder = cache_folder()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if os.access(existing, os.W_OK):
        yield _row("cache", OK, str(folder))
    else:
        yield _row("cache", MISSING, f"{folder} is not writable", "set XDG_CACHE_HOME to a folder that is")


def _extras() -> Iterator[Row]:
    """Check the extras of the package; yield one row per extra, with versions or the command that installs it."""
    try:
        requirements = metadata.requires("pretune") or ()
    except metadata.PackageNotFoundError:
        yield _row("extras", MISSING, "pretune runs from its source folder and is not installed", "pip install pretune")
        return
    for extra, names in extra_requirements(requirements).items():
        versions = {name: found for name in names if (found := installed_version(name)) is not None}
        missing = [name for name in names if name not in versions]
        purpose = EXTRAS.get(extra, extra)
        if missing:
            advice = f"pip install 'pretune[{extra}]'"
            yield _row(f"extra {extra}", MISSING, f"{purpose}: {', '.join(missing)} not installed", advice)
        else:
            found = ", ".join(f"{name} {version}" for name, version in versions.items())
            yield _row(f"extra {extra}", OK, f"{purpose}: {found}")


def extra_requirements(requirements: Iterable[str]) -> dict[str, list[str]]:
    """Return the packages of each extra, given the requirements in package metadata, except developers' extras.

    >>> extra_requirements(["torch>=2.11", "optuna>=4; extra == 'tune'", "pytest; extra == 'dev'"])
    {'tune': ['optuna']}
    """
    found: dict[str, list[str]] = {}
    for requirement in requirements:
        name, extra = re.match(r"[\w.-]+", requirement), re.search(r"extra\s*==\s*['\"]([\w.-]+)['\"]", requirement)
        newest = re.search(r"python_version\s*<\s*['\"]3\.(\d+)['\"]", requirement)
        applies = newest is None or sys.version_info < (3, int(newest[1]))
        if name and extra and applies and extra[1] not in LEFT_OUT:
            found.setdefault(extra[1], []).append(name[0])
    return found


def _self_test() -> Iterator[Row]:
    """Check that each bundled model loads and predicts a word; yield one row per model."""
    from pretune.inference.fill import MaskFiller
    from pretune.models.bundled import bundled_names

    for name in bundled_names():
        try:
            gap = MaskFiller.load(name).fill(TEST_TEXT, 3)["gaps"][0]
            if not all(0 < candidate["probability"] <= 1 for candidate in gap):
                raise ArithmeticError("torch computes probabilities that are not between 0 and 1; reinstall torch")
        except Exception as error:  # whatever it is, the row names it
            advice = "reinstall pretune and torch: pip install --force-reinstall pretune torch"
            yield _row(f"model {name}", FAILED, f"{type(error).__name__}: {error}", advice)
        else:
            words = ", ".join(candidate["token"] for candidate in gap)
            yield _row(f"model {name}", OK, f"{TEST_TEXT.replace('[MASK]', '___')} {words}")
