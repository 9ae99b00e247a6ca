"""Optional dependencies: what is imported where, and the message when one is missing."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from pretune.runtime.errors import PretuneError
from pretune.runtime.optional_imports import EXTRAS, import_optional
from tests.support.paths import DOCS, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
COLLECTIONS = {"all", "dev", "docs"}  # extras for whoever wants everything, or works on pretune itself
IMPORT_NAMES = {"pyyaml": "yaml", "scikit_learn": "sklearn"}  # where it is not the name of the distribution
WITH_TORCH = {"triton"}  # comes with torch where there is a GPU; the modules that import it are imported only there
SERVING = {"fastapi", "starlette", "uvicorn"}  # of pretune.serving, which its verb imports when it has found them
SOURCES = sorted((ROOT / "src" / "pretune").rglob("*.py"))


def packages(requirements: list[str]) -> set[str]:
    """Return the names under which the distributions of a list of requirements are imported."""
    names = (re.split(r"[^\w-]", requirement)[0].lower().replace("-", "_") for requirement in requirements)
    return {IMPORT_NAMES.get(name, name) for name in names}


CORE = packages(PROJECT["dependencies"])


def imported_packages(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield (package, line) for all import statements of other packages, except those for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            roots = {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"pretune"}
            yield from ((root, node.lineno) for root in roots)
        elif not isinstance(node, ast.expr):
            yield from imported_packages(node)


@pytest.mark.not_fast
def test_import_statements_name_the_core_dependencies_and_no_others() -> None:
    found: dict[str, str] = {}
    for path in SOURCES:
        for package, line in imported_packages(ast.parse(path.read_text(encoding="utf-8"))):
            if package not in SERVING or "serving" not in path.parts:
                found.setdefault(package, f"{path.relative_to(ROOT)}:{line}")
    wrong = {package: place for package, place in found.items() if package not in CORE | WITH_TORCH}
    assert not wrong, "import these with import_optional, inside the function that needs them"
    assert set(found) >= CORE, "a dependency that nothing imports"


@pytest.mark.not_fast
def test_optional_imports_are_inside_functions_and_have_an_extra() -> None:
    """A call outside of functions would make `import pretune` need the package."""
    used = set()
    for path in SOURCES:
        if "import_optional(" not in (text := path.read_text(encoding="utf-8")):
            continue
        tree = ast.parse(text)
        inside = {
            id(node)
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for node in ast.walk(function)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_optional"):
                assert id(node) in inside, f"{path}:{node.lineno}"
                assert isinstance(node.args[0], ast.Constant), f"{path}:{node.lineno}: name the module literally"
                used.add(str(node.args[0].value).partition(".")[0])
    assert used <= set(EXTRAS)
    assert used >= {"gensim", "h5py", "onnx", "onnxruntime", "optuna", "ray", "sacrebleu"}


def test_extras_install_the_packages_that_messages_promise() -> None:
    declared = {
        package: extra
        for extra, requirements in PROJECT["optional-dependencies"].items()
        if extra not in COLLECTIONS
        for package in packages(requirements)
    }
    assert declared == EXTRAS


def test_all_contains_every_extra() -> None:
    everything = " ".join(PROJECT["optional-dependencies"]["all"])
    named = re.search(r"pretune\[([\w,]+)\]", everything)
    assert named is not None
    missing = set(PROJECT["optional-dependencies"]) - COLLECTIONS - set(named[1].split(","))
    assert missing == {"vectors"}  # gensim is listed by itself, because it lacks wheels for the newest Python
    assert "gensim" in everything


def test_extras_that_texts_recommend_exist() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md")), *SOURCES]
    for path in pages:
        for extras in re.findall(r"pretune\[([\w,-]+)\]", path.read_text(encoding="utf-8")):
            assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"]), path


@pytest.mark.parametrize("package", EXTRAS)
def test_missing_package_names_the_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(PretuneError) as caught:
        import_optional(package, "this test")
    message = (
        f"this test needs {package}, which is not installed; install it with: pip install 'pretune[{EXTRAS[package]}]'"
    )
    assert str(caught.value) == message
    with pytest.raises(PretuneError, match="is not installed"):
        import_optional(f"{package}.anything", "this test")


@pytest.mark.parametrize("content", ["import no_such_module", "raise ImportError('libfoo.so.1: cannot open')"])
def test_broken_package_is_not_called_missing(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "h5py.py").write_text(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "h5py", raising=False)
    with pytest.raises(PretuneError, match=r"installed but cannot be imported \((No module|libfoo)"):
        import_optional("h5py", "this test")


@pytest.mark.not_fast
def test_installed_module_is_returned() -> None:
    assert import_optional("onnxruntime.quantization", "this test").__name__ == "onnxruntime.quantization"
