from __future__ import annotations

import ast
import functools
import inspect
import json
import os
import pydoc
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import pretune
from pretune.cli import VERBS
from tests.support.cli import run_command as run
from tests.support.cli import run_process
from tests.support.paths import ROOT

# Packages that `--help` and shell completion do without; each takes as long to import as the help to print.
HEAVY = {
    "torch",
    "numpy",
    "tokenizers",
    "pydantic",
    "pydantic_core",
    "pyarrow",
    "yaml",
    "sklearn",
    "scipy",
    "matplotlib",
}
MODULES = """
import sys, pretune.cli
try: pretune.cli.main(sys.argv[1:])
except SystemExit as end: assert not end.code
print(*sys.modules, sep="\\n", file=sys.stderr)
"""


def imported(*arguments: str, **options: Any) -> set[str]:
    """Return the modules that a command has imported when it ends."""
    command = [sys.executable, "-c", MODULES, *arguments]
    return set(subprocess.run(command, check=True, capture_output=True, text=True, **options).stderr.split())


@pytest.mark.not_fast
@pytest.mark.parametrize("arguments", [["--help"], *[[*name.split(), "--help"] for name in VERBS]], ids=" ".join)
def test_help_imports_only_the_verb_it_describes(arguments: list[str]) -> None:
    modules = imported(*arguments)
    assert not (HEAVY | {"cyclopts", "rich"}) & modules
    verb = VERBS[" ".join(arguments[:-1])].__module__ if arguments != ["--help"] else ""
    functions = {VERBS[name].__module__ for name in VERBS}
    assert functions & modules == {verb} - {""}


def test_import_of_the_package_loads_nothing_else() -> None:
    script = "import sys; before = set(sys.modules); import pretune; print(*(set(sys.modules) - before))"
    answer = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert [name for name in answer.stdout.split() if name.startswith("pretune") or name in HEAVY] == ["pretune"]


def test_names_of_the_package_are_imported_at_first_use() -> None:
    assert set(pretune.__all__) - {"__version__"} == set(pretune._LAZY)
    assert set(pretune.__all__) <= set(dir(pretune))
    for name in pretune._LAZY:
        assert getattr(pretune, name) is vars(pretune)[name]
    assert "labeled examples" in pydoc.render_doc(pretune.finetune)
    with pytest.raises(AttributeError, match="no attribute 'finetun'"):
        pretune.finetun  # type: ignore[attr-defined]  # noqa: B018


def declared_imports() -> dict[str, str]:
    """Return the names that `pretune/__init__.py` imports for type checkers, with their modules."""
    tree = ast.parse(Path(pretune.__file__).read_text(encoding="utf-8"))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    return {
        alias.name: str(node.module)
        for node in found
        for alias in node.names
        if str(node.module).startswith("pretune.")
    }


def test_type_checkers_see_the_same_names() -> None:
    assert declared_imports() == pretune._LAZY


COMPLETE = """
source "$1"; shift
COMP_WORDS=(pretune "$@"); COMP_CWORD=$#; COMP_LINE="pretune $*"; COMP_POINT=${#COMP_LINE}
$(complete -p pretune | sed 's/.*-F \\([^ ]*\\).*/\\1/')
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.not_fast
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_options_and_choices(tmp_path: Path) -> None:
    script = tmp_path / "pretune.bash"
    home = {**os.environ, "HOME": str(tmp_path / "home")}
    assert not HEAVY & imported("--install-completion", "--shell", "bash", "--output", str(script), env=home)
    assert not (tmp_path / "home").exists()  # with --output, no configuration is changed

    def complete(*words: str) -> list[str]:
        command = ["bash", "-c", COMPLETE, "bash", str(script), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=home).stdout.split()

    assert complete("fin") == ["finetune"]
    assert complete("finetune", "--obj") == ["--objective"]
    assert complete("tokenizer", "") == ["train", "inspect"]
    assert "wordpiece" in complete("tokenizer", "train", "--kind", "w")


@pytest.mark.not_fast
def test_completion_is_installed_in_the_home_folder(tmp_path: Path) -> None:
    home = {**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / ".local" / "share")}
    answer = run_process("--install-completion", "--shell", "bash", env=home)
    script = Path(answer.stdout.split(":")[0])
    assert script.is_file() and script.is_relative_to(tmp_path)
    assert str(script) in (tmp_path / ".bashrc").read_text(encoding="utf-8")
    assert "zsh" in run("--install-completion", "--help").stdout


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_has_recipe_set_and_json_and_documents_its_options(name: str) -> None:
    text = run(*name.split(), "--help").stdout
    for option in ("--recipe", "--set", "--json"):
        assert option in text
    from pretune.verbs.command_builder import parse_docstring

    description, notes = parse_docstring(VERBS[name])
    import inspect

    assert description
    assert set(notes) == set(inspect.signature(VERBS[name]).parameters)


def test_description_of_the_package_names_existing_verbs() -> None:
    described = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    printed = run("--help").stdout
    assert " ".join(described["description"].split()) in " ".join(printed.split())
    promised = described["description"].partition(":")[2].strip(" .").split(", ")
    assert [word for word in promised if word.replace("-", "") not in VERBS] == []
    assert all(packages for packages in described["optional-dependencies"].values())


@pytest.mark.not_fast
def test_version_is_that_of_the_package() -> None:
    assert run_process("--version").stdout.strip() == pretune.__version__


@pytest.mark.not_fast
def test_verbs_work_end_to_end(corpus: Path, tmp_path: Path) -> None:
    facts = json.loads(
        run(
            "tokenizer", "train", corpus, "--kind", "bpe", "--vocab-size", 500, "--out", tmp_path / "tok", "--json"
        ).stdout
    )
    assert facts["vocab_size"] == 500
    facts = json.loads(run("tokenizer", "inspect", tmp_path / "tok", "a statement", "is not", "--json").stdout)
    assert [row["decoded"] for row in facts["splits"]] == ["a statement", "is not"]
    human = run("tokenizer", "inspect", tmp_path / "tok", "a statement").stdout
    assert "first merges" in human
    facts = json.loads(
        run("prepare", corpus, "--tokenizer", tmp_path / "tok", "--out", tmp_path / "store", "--json").stdout
    )
    store = pretune.Store(tmp_path / "store")
    assert facts["tokens"] == store.tokens > 10_000


@pytest.mark.not_fast
def test_options_take_precedence_over_set_and_set_over_the_recipe(corpus: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text(f"corpus: ['{corpus}']\nkind: bpe\nvocab_size: 400\nlowercase: true\n")
    command = ["tokenizer", "train", "--recipe", recipe, "--json"]
    assert json.loads(run(*command).stdout)["vocab_size"] == 400
    assert json.loads(run(*command, "--set", "vocab_size=420").stdout)["vocab_size"] == 420
    assert json.loads(run(*command, "--set", "vocab_size=420", "--vocab-size", 440).stdout)["vocab_size"] == 440


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tokenizer", "train", "nowhere.txt"], "nowhere.txt: no such file or folder"),
        (["tokenizer", "train", "x.txt", "--vocab-size", "3"], "a vocabulary of 3 is too small"),
        (["prepare", "x.txt", "--tokenizer", "nowhere", "--out", "o"], "nowhere: no such tokenizer"),
        (["prepare", "x.txt", "--out", "o"], "'tokenizer' is missing: give --tokenizer"),
        (["prepare", "x.txt", "--set", "tokenzer=t", "--out", "o"], "did you mean 'tokenizer'?"),
        (["tokenizer", "inspect", "nowhere"], "nowhere: no such tokenizer"),
        (["prepare", "--recipe", "none.yaml"], "none.yaml: there is no such file"),
    ],
)
def test_invalid_input_prints_one_line_and_exits_with_an_error(arguments: list[str], message: str) -> None:
    answer = run(*arguments, check=False)
    assert answer.returncode == 1
    assert answer.stdout == ""
    assert len(answer.stderr.strip().splitlines()) == 1
    assert answer.stderr.startswith("error: ")
    assert message in answer.stderr


@pytest.mark.not_fast
def test_unknown_options_suggest_the_nearest() -> None:
    answer = run("prepare", "--tokeniser", "x", check=False)
    assert answer.returncode != 0
    assert "--tokenizer" in answer.stdout + answer.stderr
    assert "Traceback" not in answer.stderr


def test_progress_of_long_work_goes_to_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pretune.runtime import progress

    monkeypatch.delenv("PRETUNE_PROGRESS", raising=False)
    monkeypatch.setattr(progress, "PLAIN_EVERY", 0.0)
    with progress.progress("working", total=4) as bar:
        bar.update(1, "first")
    err = capsys.readouterr().err
    assert "working  25 %" in err
    assert "done in" in err


def test_command_line_can_be_called_from_python() -> None:
    import pydantic  # noqa: F401  loaded, it checks what is left out too

    refused = run("prepare", "nowhere", "--tokenizer", "t", "--out", "o", check=False)
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: t: no such tokenizer")


def flags(name: str) -> list[str]:
    """Return the flags of a verb as they are spelled on the command line."""
    from pretune.runtime.recipe import parameter_types

    return [option.replace("_", "-") for option, hint in parameter_types(VERBS[name]).items() if hint is bool]


@pytest.mark.parametrize("name", [name for name in VERBS if flags(name)])
def test_flags_can_be_turned_on_and_off(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    got: dict[str, object] = {}

    class Seen(Exception):  # noqa: N818
        pass

    @functools.wraps(VERBS[name])
    def verb(**options: object) -> None:
        got.update(options)
        raise Seen

    monkeypatch.setitem(VERBS, name, verb)
    parameters = inspect.signature(VERBS[name]).parameters.values()
    needed = [f"{p.name}=nowhere" for p in parameters if p.default is inspect.Parameter.empty]
    settings = [word for setting in needed for word in ("--set", setting)]
    for spelling, value in (("--{}", True), ("--no-{}", False), ("--{}=false", False)):
        got.clear()
        with pytest.raises(Seen):
            run(*name.split(), *(spelling.format(flag) for flag in flags(name)), *settings)
        assert {got[flag.replace("-", "_")] for flag in flags(name)} == {value}


def test_flags_take_no_value() -> None:
    for value in ("false", "True"):
        refused = run("finetune", "model", "train.csv", "--report", value, "--out", "o", check=False)
        message = f"error: --report {value}: a flag takes no value; write --report or --no-report\n"
        assert refused.returncode == 1 and refused.stderr == message


def test_recipe_may_contain_options_at_their_default(tmp_path: Path) -> None:
    """The recipe of a run contains all options, even those that do not apply to it, and can be run again."""
    (tmp_path / "r.yaml").write_text("model: nowhere\nprompts: [a]\nlength_penalty: 1.0\nseed: 0\nmax_new_tokens: 50\n")
    command = ["generate", "--recipe", tmp_path / "r.yaml"]
    assert "nowhere" in run(*command, check=False).stderr
    refused = run(*command, "--length-penalty", "1", check=False)
    assert refused.returncode == 1 and "--length-penalty applies only to beam search" in refused.stderr
