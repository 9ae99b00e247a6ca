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
from pretune.training.recipe_sections import Batching, Budget, Monitoring, Optimizer, Schedule
from pretune.verbs.compression.compress import compress
from pretune.verbs.compression.distill import distill
from pretune.verbs.compression.prune import prune
from pretune.verbs.compression.quantize import quantize
from pretune.verbs.data.histories import histories
from pretune.verbs.data.phrases import phrases
from pretune.verbs.data.prepare import prepare
from pretune.verbs.data.tokenizer import inspect_tokenizer, train_tokenizer
from pretune.verbs.data.word_vectors import train_vectors
from pretune.verbs.evaluation.bench_device import bench_device
from pretune.verbs.evaluation.compare import compare
from pretune.verbs.evaluation.contamination import contamination
from pretune.verbs.evaluation.evaluate import evaluate
from pretune.verbs.inference.ask import ask
from pretune.verbs.inference.embed import embed
from pretune.verbs.inference.fill import fill
from pretune.verbs.inference.generate import generate
from pretune.verbs.inference.neighbors import neighbors
from pretune.verbs.inference.predict import predict
from pretune.verbs.inference.translate import translate
from pretune.verbs.models.export import export
from pretune.verbs.models.import_model import import_model
from pretune.verbs.quickstart import quickstart
from pretune.verbs.show import show
from pretune.verbs.training.adapt import adapt
from pretune.verbs.training.finetune import finetune
from pretune.verbs.training.pretrain import pretrain
from pretune.verbs.training.tune import tune
from pretune.verbs.training.ulmfit import ulmfit

if TYPE_CHECKING:
    from pretune.estimators import PretuneClassifier, PretuneEmbedder, PretuneRegressor
    from pretune.evaluation.suites import register_suite
    from pretune.families import register_family
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
    "PretuneClassifier",
    "PretuneEmbedder",
    "PretuneError",
    "PretuneRegressor",
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
    "register_family",
    "register_objective",
    "register_suite",
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
    "PretuneClassifier": "pretune.estimators",
    "PretuneEmbedder": "pretune.estimators",
    "PretuneRegressor": "pretune.estimators",
    "Run": "pretune.training.run_folder",
    "Store": "pretune.text.store.store",
    "Task": "pretune.objectives.task",
    "Tokenizer": "pretune.text.tokenizers.tokenizer",
    "load": "pretune.models.loading",
    "register_family": "pretune.families",
    "register_objective": "pretune.objectives.registry",
    "register_suite": "pretune.evaluation.suites",
    "register_task": "pretune.objectives.registry",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'pretune' has no attribute {name!r}")
