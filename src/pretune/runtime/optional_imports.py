"""Imports of optional dependencies, with an error that names the extra to install."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pretune.runtime.errors import PretuneError

# Package → the extra of pretune (`project.optional-dependencies` in pyproject.toml) that installs it.
EXTRAS = {
    "gensim": "vectors",
    "h5py": "elmo",
    "onnx": "export",
    "onnxruntime": "export",
    "optuna": "tune",
    "pandas": "pandas",
    "ray": "cluster",
    "sacrebleu": "eval",
}


def import_optional(module: str, purpose: str) -> Any:
    """Import and return a module of an optional dependency, or raise an error that says how to install it.

    `purpose` is the subject of the message: what the package is needed for.

    Without the package, `import_optional("optuna", "pretune tune")` raises "pretune tune needs optuna, which is not
    installed; install it with: pip install 'pretune[tune]'".
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
    """Return the error for a package that is installed but fails when it is imported."""
    return PretuneError(
        f"{purpose} needs {package}, which is installed but cannot be imported ({error}); "
        f"install it again with: pip install --force-reinstall {package}"
    )
