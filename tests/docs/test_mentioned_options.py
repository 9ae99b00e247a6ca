"""Options that messages, help and docs name are options of the command that they are about."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from pretune import PretuneError
from pretune.cli import GROUPS, VERBS, main, make_command, parse_docstring
from pretune.objectives import OBJECTIVES, parse_objective
from pretune.runtime.errors import command_options, if_option
from pretune.runtime.recipe import section_keys
from pretune.text.examples.labeled import read_labeled
from pretune.training.recipe_sections import Batching, Budget, Monitoring, Optimizer, Schedule
from tests.support import call_graph
from tests.support.paths import ROOT

PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
]
SECTIONS = {"budget": Budget, "optimizer": Optimizer, "schedule": Schedule, "batch": Batching, "monitor": Monitoring}
OPTION = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]*)")
# A command that a text has in it: options after its name are its own.
COMMAND = re.compile(r"(?:\bpretune (" + "|".join(sorted(VERBS, key=len, reverse=True)) + r")\b)|\b(torchrun|ray start|pip|pytest|kubectl|srun|sbatch)\b")  # fmt: skip
# Options of SLURM and of torchrun, in the job files of the docs.
OTHERS = {
    "job-name", "nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "requeue", "signal", "nproc-per-node",
    "rdzv-id", "rdzv-backend", "rdzv-endpoint", "max-restarts",
}  # fmt: skip
# Where an option's name is filled in, and why it is one that the command has.
FILLED_IN = {
    ("pretune.text.examples.labeled", "advise_options"),  # each is guarded
    ("pretune.runtime.recipe", "_explain"),  # a parameter that the verb lacks
    ("pretune.evaluation.language_modeling", "evaluate_language"),  # those that were given
    ("pretune.verbs.verb", "option_spelling"),  # the same
    ("pretune.cli", "_spell"),  # makes them
    ("pretune.cli", "check_flags"),  # one that was given
    ("pretune.training.jobs.multitask", "find_tasks"),  # --train or --dev, which was given
    ("pretune.cli", "_option"),  # makes them
}


@cache
def options(verb: str) -> set[str]:
    """Return the options of a command, those that turn one off included."""
    names = {name.rstrip("_").replace("_", "-") for name in make_command(verb, VERBS[verb]).__signature__.parameters}  # type: ignore[attr-defined]
    return {"help", *names, *(f"no-{name}" for name in names)}


def foreign(text: str, users: list[str]) -> list[str]:
    """Return the options that a text names and that its command, or else one of these verbs, does not have.

    A text that begins with an option speaks to somebody who gave it, and so has a command with that option.
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
    """Return the verbs that can reach each unit of code; what none reaches is the command line's own."""
    found: dict[call_graph.Unit, list[str]] = {}
    for name, verb in VERBS.items():
        for unit in call_graph.reached((verb.__module__, verb.__name__)):
            found.setdefault(unit, []).append(name)
    return found


@cache
def rules() -> dict[str, list[str]]:
    """Return the verbs that declare where their options apply in these words (see verbs/verb.py)."""
    found: dict[str, list[str]] = {}
    for name, verb in VERBS.items():
        for rule in verb.rules:  # type: ignore[attr-defined]
            found.setdefault(rule.where, []).append(name)
    return found


def test_messages_name_options_that_their_commands_have() -> None:
    """A message that several commands can show names options that all of them have, or asks with `if_option`."""
    wrong = []
    for unit in call_graph.units():
        if unit in FILLED_IN or unit[0] == "pretune.verbs.options":  # help texts: see the next test
            continue
        for line, text, guard in call_graph.messages(unit, "if_option"):
            known = rules().get(text) or users().get(unit, list(VERBS))
            if guard is not None:
                known = [verb for verb in VERBS if guard in options(verb)]
            wrong += [f"{'.'.join(unit)}, line {line}: {option}" for option in foreign(text, known) if guard != "{}"]
            if re.search(r"(?<![\w-])--\{", text):
                wrong.append(f"{'.'.join(unit)}, line {line}: an option whose name is filled in")
    assert wrong == []


def test_help_names_options_that_exist() -> None:
    wrong = []
    for name, verb in VERBS.items():
        for parameter in make_command(name, verb).__signature__.parameters.values():  # type: ignore[attr-defined]
            wrong += [f"{name}: {option}" for option in foreign(parameter.annotation.__metadata__[0].help, [name])]
        wrong += [f"{name}: {option}" for option in foreign(parse_docstring(verb)[0], [name])]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES)
def test_docs_name_options_that_exist(page: str) -> None:
    """Options in a command are that command's; in running text, those of some command, script or program that the page is about."""
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
            parse_objective(quoted.replace(r"\|", "|"))  # its options, too
    linked = [(ROOT / page).parent / name for name in re.findall(r"\]\(([\w/.-]+)[)#]", text)]
    named = [ROOT / name for name in re.findall(r"`((?:src|tests|docs|perf|script)/[\w/.-]+)`", text)]
    assert [str(path) for path in [*linked, *named] if not path.exists()] == []


def test_advice_is_given_where_the_command_has_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_bytes(b"text,label\ncaf\xe9,a\nb,b\n")
    with pytest.raises(SystemExit):
        main(["finetune", "pretune-small-en", str(bad), "--out", str(tmp_path / "run")])
    refused = capsys.readouterr().err
    assert (
        "bad.csv, line 2: not valid UTF-8" in refused and "to UTF-8" in refused and "--encoding-errors" not in refused
    )
    with pytest.raises(SystemExit):
        main(["prepare", str(bad), "--tokenizer", "pretune-small-en", "--out", str(tmp_path / "store")])
    assert "or replace invalid bytes with --errors replace" in capsys.readouterr().err
    with pytest.raises(PretuneError, match="--errors replace"):  # from Python, all advice is given
        read_labeled(bad)


def test_the_options_of_a_command_are_known_while_it_runs_alone() -> None:
    with command_options(["out", "steps"]):
        assert if_option("steps", "--steps") and not if_option("encoding-errors", "--encoding-errors")
        with command_options(["errors"]):
            assert if_option("encoding-errors", "--encoding-errors") and not if_option("steps", "--steps")
        assert if_option("steps", "--steps")
    assert if_option("encoding-errors", "--encoding-errors")


def test_the_call_graph_follows_calls_methods_and_values() -> None:
    """What reaches a message is found: through a verb's function, a method by its name, a table of classes."""

    def who(*unit: str) -> set[str]:
        return set(users().get(unit, []))

    assert {"finetune", "predict", "prepare", "pretrain"} <= who("pretune.text.corpus.files", "decode_line")
    assert {"finetune", "predict"} <= who("pretune.objectives.tasks.rank", "require_pairs") and "prepare" not in who(
        "pretune.objectives.tasks.rank", "require_pairs"
    )
    assert {"pretrain", "adapt"} <= who("pretune.training.jobs.pretraining_data", "get_store")
    assert who("pretune.compression.pruning", "PruningSpec", "check") >= {"prune", "compress"}
    assert foreign("replace invalid bytes with --encoding-errors replace", ["finetune"]) == ["--encoding-errors"]
    assert foreign("use `pretune prepare --encoding-errors replace`", ["finetune"]) == []
    assert foreign("use `pretune prepare --error replace`", ["finetune"]) == ["--error"]
    assert foreign("--errors strict: no; leave it out, or --column", ["finetune", "prepare"]) == []
    assert foreign("--errors strict: no; give --epochs", ["finetune", "prepare"]) == ["--epochs"]
