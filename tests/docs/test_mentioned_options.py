"""Tests that options in messages, help and docs are options of the respective command."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from pretune import PretuneError
from pretune.cli import VERBS
from pretune.objectives import OBJECTIVES, parse_objective
from pretune.runtime.errors import command_options, if_option
from pretune.runtime.recipe import section_keys
from pretune.text.examples.labeled import read_labeled
from pretune.training.recipe_sections import Batching, Budget, Monitoring, Optimizer, Schedule
from pretune.verbs.command_builder import make_command, parse_docstring
from pretune.verbs.command_table import GROUPS
from tests.support import call_graph
from tests.support.cli import run_command
from tests.support.pages import all_pages
from tests.support.paths import ROOT

PAGES = all_pages()
SECTIONS = {"budget": Budget, "optimizer": Optimizer, "schedule": Schedule, "batch": Batching, "monitor": Monitoring}
OPTION = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]*)")
# A command within a text: options after its name are its own.
COMMAND = re.compile(r"(?:\bpretune (" + "|".join(sorted(VERBS, key=len, reverse=True)) + r")\b)|\b(torchrun|ray start|pip|pytest|kubectl|srun|sbatch)\b")  # fmt: skip
# Options of SLURM and torchrun in the job files of the docs, and of `pretune` without a command.
OTHERS = {
    "job-name", "time", "nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "requeue", "signal", "nproc-per-node",
    "rdzv-id", "rdzv-backend", "rdzv-endpoint", "max-restarts", "install-completion",
}  # fmt: skip
# Functions that insert the name of an option, and why the command has it.
FILLED_IN = {
    ("pretune.text.examples.labeled", "advise_options"),  # each is checked
    ("pretune.runtime.recipe", "_explain"),  # a missing parameter of the verb
    ("pretune.evaluation.language_modeling", "evaluate_language"),  # those that were given
    ("pretune.verbs.verb", "option_spelling"),  # the same
    ("pretune.verbs.command_builder", "Option", "spelling"),  # creates them
    ("pretune.verbs.command_builder", "check_flags"),  # one that was given
    ("pretune.training.jobs.multitask", "find_tasks"),  # --train or --dev, which was given
    ("pretune.cli", "make_app"),  # options of `pretune` itself
    ("pretune.cli", "install_completion"),
}


FOR_PYTHON = ("pretune.loaded_model",)  # modules that no command uses, although results of commands refer to them


@cache
def options(verb: str) -> set[str]:
    """Return the options of a command, including those that turn one off."""
    names = {name.rstrip("_").replace("_", "-") for name in make_command(verb, VERBS[verb]).__signature__.parameters}  # type: ignore[attr-defined]
    return {"help", *names, *(f"no-{name}" for name in names)}


def unknown_options(text: str, users: list[str]) -> list[str]:
    """Return the options in a text that its command, or else one of these verbs, does not have.

    A text that begins with an option is for a user who gave it, and so belongs to a command with that option.
    """
    if (first := OPTION.match(text)) is not None:
        users = [verb for verb in users if first[1] in options(verb)]
    wrong = []
    for found in OPTION.finditer(text):
        commands = list(COMMAND.finditer(text, 0, found.start()))
        if commands:
            verb, program = commands[-1].groups()
            known = program is not None or found[1] in options(verb)
        else:
            known = bool(users) and all(found[1] in options(verb) for verb in users)
        wrong += [] if known else [f"--{found[1]}"]
    return wrong


@cache
def users() -> dict[call_graph.Unit, list[str]]:
    """Return the verbs that can reach each unit of code; units that none reaches belong to the command line."""
    found: dict[call_graph.Unit, list[str]] = {}
    for name, verb in VERBS.items():
        for unit in call_graph.reached((verb.__module__, verb.__name__), without=FOR_PYTHON):
            found.setdefault(unit, []).append(name)
    return found


@cache
def rules() -> dict[str, list[str]]:
    """Return the verbs that declare where their options apply, by the wording (see verbs/verb.py)."""
    found: dict[str, list[str]] = {}
    for name, verb in VERBS.items():
        for rule in verb.rules:  # type: ignore[attr-defined]
            found.setdefault(rule.where, []).append(name)
    return found


@pytest.mark.not_fast
def test_messages_name_options_of_their_commands() -> None:
    """A message of several commands names options that all of them have, or checks with `if_option`."""
    wrong = []
    for unit in call_graph.units():
        if unit in FILLED_IN or unit[0] in ("pretune.verbs.options", "pretune.verbs.help_text"):  # see the next test
            continue
        for line, text, guard in call_graph.messages(unit, "if_option"):
            known = rules().get(text) or users().get(unit, list(VERBS))
            if guard is not None:
                known = [verb for verb in VERBS if guard in options(verb)]
            wrong += [
                f"{'.'.join(unit)}, line {line}: {option}" for option in unknown_options(text, known) if guard != "{}"
            ]
            if re.search(r"(?<![\w-])--\{", text):
                wrong.append(f"{'.'.join(unit)}, line {line}: an option whose name is filled in")
    assert wrong == []


def test_help_names_options_that_exist() -> None:
    wrong = []
    for name, verb in VERBS.items():
        for parameter in make_command(name, verb).__signature__.parameters.values():  # type: ignore[attr-defined]
            wrong += [
                f"{name}: {option}" for option in unknown_options(parameter.annotation.__metadata__[0].help, [name])
            ]
        wrong += [f"{name}: {option}" for option in unknown_options(parse_docstring(verb)[0], [name])]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES)
def test_docs_name_options_that_exist(page: str) -> None:
    """Options in a command belong to it; in running text, to any command, script or program that the page is about."""
    scripts = [
        path.read_text("utf-8") for folder in ("perf", "script") for path in (ROOT / folder).iterdir() if path.is_file()
    ]
    elsewhere = {*OTHERS, *(option for text in scripts for option in re.findall(r'"--([a-z-]+)"', text))}
    wrong = []
    for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), 1):
        for found in OPTION.finditer(line):
            commands = list(COMMAND.finditer(line, 0, found.start()))
            verb, program = commands[-1].groups() if commands else (None, None)
            if commands and "`" not in line[commands[-1].start() : found.start()]:
                known = program is not None or found[1] in options(verb)
            else:
                known = found[1] in elsewhere or any(found[1] in options(name) for name in VERBS)
            wrong += [] if known else [f"line {number}: --{found[1]}"]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES)
def test_docs_name_commands_keys_objectives_and_files_that_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    verbs = {*VERBS, *GROUPS, "VERB"}
    assert {verb for verb in re.findall(r"`pretune ([a-z]+|VERB)\b", text) if verb not in verbs} == set()
    keys = re.findall(rf"\b({'|'.join(SECTIONS)})\.([a-z_]+)\b(?!/)", text)
    assert [key for key in keys if key[1] not in (*section_keys(SECTIONS[key[0]]), "py", "md")] == []
    for quoted in re.findall(r"`([a-z_]+\([^`\n]*)`", text):
        if quoted.partition("(")[0] in OBJECTIVES:
            parse_objective(quoted.replace(r"\|", "|"))  # with its options
    linked = [(ROOT / page).parent / name for name in re.findall(r"\]\(([\w/.-]+)[)#]", text)]
    named = [ROOT / name for name in re.findall(r"`((?:src|tests|docs|perf|script)/[\w/.-]+)`", text)]
    assert [str(path) for path in [*linked, *named] if not path.exists()] == []


@pytest.mark.not_fast
def test_advice_is_given_if_the_command_has_the_option(tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_bytes(b"text,label\ncaf\xe9,a\nb,b\n")
    refused = run_command("finetune", "pretune-small-en", bad, "--out", tmp_path / "run", check=False).stderr
    assert (
        "bad.csv, line 2: not valid UTF-8" in refused and "to UTF-8" in refused and "--encoding-errors" not in refused
    )
    refused = run_command(
        "prepare", bad, "--tokenizer", "pretune-small-en", "--out", tmp_path / "store", check=False
    ).stderr
    assert "or replace invalid bytes with --encoding-errors replace" in refused
    with pytest.raises(PretuneError, match="--encoding-errors replace"):  # from Python, all advice is given
        read_labeled(bad)


def test_options_of_a_command_are_known_only_while_it_runs() -> None:
    with command_options(["out", "steps"]):
        assert if_option("steps", "--steps") and not if_option("encoding-errors", "--encoding-errors")
        with command_options(["encoding-errors"]):
            assert if_option("encoding-errors", "--encoding-errors") and not if_option("steps", "--steps")
        assert if_option("steps", "--steps")
    assert if_option("encoding-errors", "--encoding-errors")


@pytest.mark.not_fast
def test_call_graph_follows_calls_methods_and_values() -> None:
    """Callers are found through the function of a verb, a method by its name, and a table of classes."""

    def verbs_that_reach(*unit: str) -> set[str]:
        return set(users().get(unit, []))

    assert {"finetune", "predict", "prepare", "pretrain"} <= verbs_that_reach(
        "pretune.text.corpus.files", "decode_line"
    )
    assert {"finetune", "predict"} <= verbs_that_reach(
        "pretune.objectives.tasks.classify", "require_pairs"
    ) and "prepare" not in verbs_that_reach("pretune.objectives.tasks.classify", "require_pairs")
    assert {"pretrain", "adapt"} <= verbs_that_reach("pretune.training.jobs.pretraining_data", "get_store")
    assert verbs_that_reach("pretune.compression.pruning", "PruningSpec", "check") >= {"prune", "compress"}
    assert unknown_options("replace invalid bytes with --encoding-errors replace", ["finetune"]) == [
        "--encoding-errors"
    ]
    assert unknown_options("use `pretune prepare --encoding-errors replace`", ["finetune"]) == []
    assert unknown_options("use `pretune prepare --error replace`", ["finetune"]) == ["--error"]
    assert unknown_options("--encoding-errors strict: no; leave it out, or --text-field", ["finetune", "prepare"]) == []
    assert unknown_options("--encoding-errors strict: no; give --epochs", ["finetune", "prepare"]) == ["--epochs"]
