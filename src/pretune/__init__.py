"""Transfer learning for text, end to end: pretrain, fine-tune, evaluate, compress, and use models.

Each command of the command line is a function of this module, with the same options.

>>> import pretune as pt
>>> tokenizer = pt.train_tokenizer("corpus/", kind="wordpiece", size=30_000)  # doctest: +SKIP
>>> store = pt.prepare("corpus/", tokenizer, out="store/")  # doctest: +SKIP
>>> encoder = pt.pretrain("bert-small", store, budget=pt.Budget(seconds=900), out="runs/encoder")  # doctest: +SKIP
>>> classifier = pt.finetune(encoder, "train.csv", dev="dev.csv", out="runs/classifier")  # doctest: +SKIP
>>> classifier.predict(["a delightful film"])  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretune.runtime.errors import PretuneError
from pretune.training.settings import Batching, Budget, Monitoring, Optimizer, Schedule
from pretune.verbs.adapt import adapt
from pretune.verbs.ask import ask
from pretune.verbs.bench import bench_device
from pretune.verbs.compress import compress
from pretune.verbs.distill import distill
from pretune.verbs.evaluate import compare, contamination, evaluate
from pretune.verbs.export import export
from pretune.verbs.finetune import finetune
from pretune.verbs.generate import generate
from pretune.verbs.histories import histories
from pretune.verbs.import_model import import_model
from pretune.verbs.neighbors import neighbors
from pretune.verbs.phrases import phrases
from pretune.verbs.predict import embed, fill, predict
from pretune.verbs.prepare import prepare
from pretune.verbs.pretrain import pretrain
from pretune.verbs.prune import prune
from pretune.verbs.quantize import quantize
from pretune.verbs.quickstart import quickstart
from pretune.verbs.show import show
from pretune.verbs.tokenizer import inspect_tokenizer, train_tokenizer
from pretune.verbs.translate import translate
from pretune.verbs.tune import tune
from pretune.verbs.ulmfit import ulmfit
from pretune.verbs.vectors import train_vectors

if TYPE_CHECKING:
    from pretune.families.family import Family
    from pretune.models.loading import load
    from pretune.models.model import Model
    from pretune.objectives.objective import Objective
    from pretune.objectives.registry import register_objective, register_task
    from pretune.objectives.task import Task
    from pretune.packed import Batch, Packed
    from pretune.text.store.store import Store
    from pretune.text.tokenizers.tokenizer import Tokenizer
    from pretune.training.run_folder import Run

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Batching",
    "Budget",
    "Family",
    "Model",
    "Monitoring",
    "Objective",
    "Optimizer",
    "Packed",
    "PretuneError",
    "Run",
    "Schedule",
    "Store",
    "Task",
    "Tokenizer",
    "__version__",
    "adapt",
    "ask",
    "bench_device",
    "compare",
    "compress",
    "contamination",
    "distill",
    "embed",
    "evaluate",
    "export",
    "fill",
    "finetune",
    "generate",
    "histories",
    "import_model",
    "inspect_tokenizer",
    "load",
    "neighbors",
    "phrases",
    "predict",
    "prepare",
    "pretrain",
    "prune",
    "quantize",
    "quickstart",
    "register_objective",
    "register_task",
    "show",
    "train_tokenizer",
    "train_vectors",
    "translate",
    "tune",
    "ulmfit",
]

_LAZY = {  # imported at first use, which keeps `import pretune` fast
    "Batch": "pretune.packed",
    "Family": "pretune.families.family",
    "Model": "pretune.models.model",
    "Objective": "pretune.objectives.objective",
    "Packed": "pretune.packed",
    "Run": "pretune.training.run_folder",
    "Store": "pretune.text.store.store",
    "Task": "pretune.objectives.task",
    "Tokenizer": "pretune.text.tokenizers.tokenizer",
    "load": "pretune.models.loading",
    "register_objective": "pretune.objectives.registry",
    "register_task": "pretune.objectives.registry",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'pretune' has no attribute {name!r}")
