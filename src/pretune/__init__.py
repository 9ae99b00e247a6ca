"""Transfer learning for text, end to end: pretrain, fine-tune, evaluate, probe, compress, serve.

Each command of the command line is a function of this module, with the same options.

>>> import pretune as pt
>>> tokenizer = pt.train_tokenizer("corpus/", kind="wordpiece", vocab_size=30_000, out="tokenizer/")  # doctest: +SKIP
>>> store = pt.prepare("corpus/", tokenizer, out="store/")  # doctest: +SKIP
>>> encoder = pt.pretrain("bert-small", store, budget=pt.Budget(seconds=900), out="runs/encoder")  # doctest: +SKIP
>>> classifier = pt.finetune(encoder, "train.csv", dev="dev.csv", out="runs/classifier")  # doctest: +SKIP
>>> classifier.predict(["a delightful film"])  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pretune.estimators import PretuneClassifier, PretuneEmbedder, PretuneRegressor
    from pretune.evaluation.suites import register_suite
    from pretune.families import register_family
    from pretune.families.family import Family
    from pretune.loaded_model import LoadedModel, load
    from pretune.metrics.custom import register_metric
    from pretune.models.model import Model
    from pretune.objectives.objective import Objective
    from pretune.objectives.registry import register_objective, register_task
    from pretune.objectives.task import Task
    from pretune.packed import Batch, Packed
    from pretune.runtime.errors import PretuneError
    from pretune.text.store.store import Store
    from pretune.text.tokenizers.tokenizer import Tokenizer
    from pretune.training.callbacks import Callback
    from pretune.training.recipe_sections import BackTranslation, Batching, Budget, Monitoring, Optimizer, Schedule
    from pretune.training.run_folder import Run
    from pretune.verbs.compression.compress import compress
    from pretune.verbs.compression.distill import distill
    from pretune.verbs.compression.prune import prune
    from pretune.verbs.compression.quantize import quantize
    from pretune.verbs.data.convert import convert
    from pretune.verbs.data.histories import histories
    from pretune.verbs.data.phrases import phrases
    from pretune.verbs.data.prepare import prepare
    from pretune.verbs.data.tokenizer import inspect_tokenizer, train_tokenizer
    from pretune.verbs.data.word_vectors import train_vectors
    from pretune.verbs.doctor import doctor
    from pretune.verbs.evaluation.attention import attention
    from pretune.verbs.evaluation.bench import bench
    from pretune.verbs.evaluation.compare import compare
    from pretune.verbs.evaluation.contamination import contamination
    from pretune.verbs.evaluation.evaluate import evaluate
    from pretune.verbs.evaluation.probe import probe
    from pretune.verbs.evaluation.project import project
    from pretune.verbs.evaluation.roofline import roofline
    from pretune.verbs.evaluation.similarity import similarity
    from pretune.verbs.evaluation.study import study
    from pretune.verbs.inference.ask import ask
    from pretune.verbs.inference.embed import embed
    from pretune.verbs.inference.fill import fill
    from pretune.verbs.inference.generate import generate
    from pretune.verbs.inference.neighbors import neighbors
    from pretune.verbs.inference.predict import predict
    from pretune.verbs.inference.recommend import recommend
    from pretune.verbs.inference.search import search
    from pretune.verbs.inference.serve import serve
    from pretune.verbs.inference.translate import translate
    from pretune.verbs.models.export import export
    from pretune.verbs.models.import_model import import_model
    from pretune.verbs.quickstart import quickstart
    from pretune.verbs.show import show
    from pretune.verbs.training.adapt import adapt
    from pretune.verbs.training.finetune import finetune
    from pretune.verbs.training.label import label
    from pretune.verbs.training.pretrain import pretrain
    from pretune.verbs.training.tune import tune
    from pretune.verbs.training.ulmfit import ulmfit

__version__ = "0.1.0"

__all__ = [
    "BackTranslation",
    "Batch",
    "Batching",
    "Budget",
    "Callback",
    "Family",
    "LoadedModel",
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
    "attention",
    "bench",
    "compare",
    "compress",
    "contamination",
    "convert",
    "distill",
    "doctor",
    "embed",
    "evaluate",
    "export",
    "fill",
    "finetune",
    "generate",
    "histories",
    "import_model",
    "inspect_tokenizer",
    "label",
    "load",
    "neighbors",
    "phrases",
    "predict",
    "prepare",
    "pretrain",
    "probe",
    "project",
    "prune",
    "quantize",
    "quickstart",
    "recommend",
    "register_family",
    "register_metric",
    "register_objective",
    "register_suite",
    "register_task",
    "roofline",
    "search",
    "serve",
    "show",
    "similarity",
    "study",
    "train_tokenizer",
    "train_vectors",
    "translate",
    "tune",
    "ulmfit",
]

_LAZY = {  # of the names above, imported at first use, which keeps `import pretune` fast
    "BackTranslation": "pretune.training.recipe_sections",
    "Batch": "pretune.packed",
    "Batching": "pretune.training.recipe_sections",
    "Budget": "pretune.training.recipe_sections",
    "Callback": "pretune.training.callbacks",
    "Family": "pretune.families.family",
    "LoadedModel": "pretune.loaded_model",
    "Model": "pretune.models.model",
    "Monitoring": "pretune.training.recipe_sections",
    "Objective": "pretune.objectives.objective",
    "Optimizer": "pretune.training.recipe_sections",
    "Packed": "pretune.packed",
    "PretuneClassifier": "pretune.estimators",
    "PretuneEmbedder": "pretune.estimators",
    "PretuneError": "pretune.runtime.errors",
    "PretuneRegressor": "pretune.estimators",
    "Run": "pretune.training.run_folder",
    "Schedule": "pretune.training.recipe_sections",
    "Store": "pretune.text.store.store",
    "Task": "pretune.objectives.task",
    "Tokenizer": "pretune.text.tokenizers.tokenizer",
    "adapt": "pretune.verbs.training.adapt",
    "ask": "pretune.verbs.inference.ask",
    "attention": "pretune.verbs.evaluation.attention",
    "bench": "pretune.verbs.evaluation.bench",
    "compare": "pretune.verbs.evaluation.compare",
    "compress": "pretune.verbs.compression.compress",
    "contamination": "pretune.verbs.evaluation.contamination",
    "convert": "pretune.verbs.data.convert",
    "distill": "pretune.verbs.compression.distill",
    "doctor": "pretune.verbs.doctor",
    "embed": "pretune.verbs.inference.embed",
    "evaluate": "pretune.verbs.evaluation.evaluate",
    "export": "pretune.verbs.models.export",
    "fill": "pretune.verbs.inference.fill",
    "finetune": "pretune.verbs.training.finetune",
    "generate": "pretune.verbs.inference.generate",
    "histories": "pretune.verbs.data.histories",
    "import_model": "pretune.verbs.models.import_model",
    "inspect_tokenizer": "pretune.verbs.data.tokenizer",
    "label": "pretune.verbs.training.label",
    "load": "pretune.loaded_model",
    "neighbors": "pretune.verbs.inference.neighbors",
    "phrases": "pretune.verbs.data.phrases",
    "predict": "pretune.verbs.inference.predict",
    "prepare": "pretune.verbs.data.prepare",
    "pretrain": "pretune.verbs.training.pretrain",
    "project": "pretune.verbs.evaluation.project",
    "probe": "pretune.verbs.evaluation.probe",
    "prune": "pretune.verbs.compression.prune",
    "quantize": "pretune.verbs.compression.quantize",
    "quickstart": "pretune.verbs.quickstart",
    "recommend": "pretune.verbs.inference.recommend",
    "register_family": "pretune.families",
    "register_metric": "pretune.metrics.custom",
    "register_objective": "pretune.objectives.registry",
    "register_suite": "pretune.evaluation.suites",
    "register_task": "pretune.objectives.registry",
    "roofline": "pretune.verbs.evaluation.roofline",
    "search": "pretune.verbs.inference.search",
    "serve": "pretune.verbs.inference.serve",
    "show": "pretune.verbs.show",
    "similarity": "pretune.verbs.evaluation.similarity",
    "study": "pretune.verbs.evaluation.study",
    "train_tokenizer": "pretune.verbs.data.tokenizer",
    "train_vectors": "pretune.verbs.data.word_vectors",
    "translate": "pretune.verbs.inference.translate",
    "tune": "pretune.verbs.training.tune",
    "ulmfit": "pretune.verbs.training.ulmfit",
}

if not TYPE_CHECKING:  # type checkers see the imports above, and report names that do not exist

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module 'pretune' has no attribute {name!r}")
        from importlib import import_module

        globals()[name] = value = getattr(import_module(_LAZY[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
