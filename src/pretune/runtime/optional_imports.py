"""Import optional dependencies, and say which extra to install if one is missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pretune.runtime.errors import PretuneError

# Package → the extra of pretune (`project.optional-dependencies` in pyproject.toml) that installs it.
EXTRAS = {
    "fastapi": "serve",
    "gensim": "vectors",
    "h5py": "elmo",
    "onnx": "export",
    "onnxruntime": "export",
    "optuna": "tune",
    "pandas": "pandas",
    "py3langid": "languages",
    "ray": "cluster",
    "sacrebleu": "eval",
    "tensorboard": "tensorboard",
    "uvicorn": "serve",
    "wandb": "wandb",
}


def import_optional(module: str, purpose: str) -> Any:
    """Import and return a module of an optional dependency, or raise an error that says how to install it.

    `purpose` says what the package is needed for; it is the subject of the error message. If optuna is not installed,
    `import_optional("optuna", "pretune tune")` raises "pretune tune needs optuna, which is not installed; install it
    with: pip install 'pretune[tune]'".
    """
    package = module.partition(".")[0]
    extra = EXTRAS[package]
    try:
        import_module(package)  # first, so that its own absence is told from that of one of its modules
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise _broken(package, purpose, error) from error
        raise PretuneError(
            f"{purpose} needs {package}, which is not installed; install it with: pip install 'pretune[{extra}]'"
        ) from error
    except ImportError as error:
        raise _broken(package, purpose, error) from error


def _broken(package: str, purpose: str, error: ImportError) -> PretuneError:
    """Return the error to raise for a package that is installed but fails with `error` when it is imported.

    `purpose` says what the package is needed for.
    """
    return PretuneError(
        f"{purpose} needs {package}, which is installed but cannot be imported ({error}); "
        f"install it again with: pip install --force-reinstall {package}"
    )


def installed_version(package: str) -> str | None:
    """Return the version of an installed package, or None if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    try:
        return version(package)
    except PackageNotFoundError:
        return None
