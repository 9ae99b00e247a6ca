from __future__ import annotations

import inspect

import pytest

import pretune
from pretune.cli import VERBS
from pretune.verbs.command_line import ADVANCED, ALL_COMMANDS, COMMON, make_command
from pretune.verbs.commands import COMMANDS, GROUPS, STAGES, requested_command
from tests.support.cli import run_command as run

MANY = 13  # options; a command with more of them declares the common ones


def test_table_names_every_verb_of_the_package_once() -> None:
    verbs = {name for name, module in pretune._LAZY.items() if module.startswith("pretune.verbs.")}
    assert sorted(command.verb for command in COMMANDS.values()) == sorted(verbs)
    assert {command.stage for command in COMMANDS.values()} == set(STAGES)
    assert {name.split()[0] for name in COMMANDS if " " in name} == set(GROUPS)
    for name, command in COMMANDS.items():
        assert VERBS[name] is getattr(pretune, command.verb)
        assert command.summary.endswith(".") and command.summary[0].isupper(), name


def test_help_lists_each_command_on_one_line_under_its_stage() -> None:
    lines = run("--help").stdout.splitlines()
    panels = [line.strip("╭─╮ ") for line in lines if line.startswith("╭")]
    assert panels == [*STAGES, "Options"]
    shown = [line.strip("│ ") for line in lines if line.startswith("│")]
    summaries = GROUPS | {name: command.summary for name, command in COMMANDS.items() if " " not in name}
    found = {line.split()[0]: " ".join(line.split()[1:]) for line in shown if not line.startswith("--")}
    assert found == summaries
    for group in GROUPS:
        text = run(group, "--help").stdout
        assert all(c.summary in text for name, c in COMMANDS.items() if name.startswith(f"{group} "))


def groups(name: str) -> dict[str, list[str]]:
    """Return the options of a command by the group under which its help shows them."""
    found: dict[str, list[str]] = {}
    for option, parameter in inspect.signature(make_command(name, VERBS[name])).parameters.items():
        found.setdefault(parameter.annotation.__metadata__[0].group[0].name, []).append(option)
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_common_options_first_and_those_of_all_commands_last(name: str) -> None:
    shown = groups(name)
    assert shown[ALL_COMMANDS.name] == ["recipe", "set", "json"]
    common, options = shown.get(COMMON.name, []), [*shown.get(COMMON.name, []), *shown.get(ADVANCED.name, [])]
    assert len(common) <= 14
    declared = VERBS[name].common  # type: ignore[attr-defined]
    if declared is None:
        assert len(options) <= MANY, f"{name} has many options; declare the common ones in its `@verb(common=…)`"
    else:
        assert set(declared) <= set(common) and ADVANCED.name in shown
        assert len(set(declared)) == len(declared)
    text = run(*name.split(), "--help").stdout
    panels = [line.strip("╭─╮ ") for line in text.splitlines() if line.startswith("╭")]
    assert panels == [group for group in (COMMON.name, ADVANCED.name, ALL_COMMANDS.name) if group in shown]


def test_required_options_are_common() -> None:
    assert {"model", "train", "out"} <= set(groups("finetune")[COMMON.name])
    assert "text" in groups("finetune")[COMMON.name] and "learning_curve" in groups("finetune")[ADVANCED.name]


@pytest.mark.parametrize(
    ("words", "name"),
    [("tokenizer train x", "tokenizer train"), ("tokenizer", None), ("--help", None), ("fill", "fill")],
)
def test_command_is_found_from_its_first_words(words: str, name: str | None) -> None:
    assert requested_command(words.split()) == name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("fintune a b", "There is no command 'fintune'; did you mean 'finetune'?"),
        ("tokenizer trian x", "There is no command 'tokenizer trian'; did you mean 'tokenizer train'?"),
        ("xyzzy", "There is no command 'xyzzy'; see `pretune --help`"),
        ("vector", "did you mean 'vectors'?"),
        ("finetune a b --lable x", "Unknown option: --lable. Did you mean --label? See `pretune finetune --help`."),
        ("tokenizer train x --kind wordpeice", 'Did you mean "wordpiece"?'),
        ("finetune a b --epochs many", "Invalid value for --epochs"),
    ],
)
def test_misspelled_commands_and_options_are_refused_in_one_line(words: str, message: str) -> None:
    answer = run(*words.split(), check=False)
    assert answer.returncode == 1 and answer.stdout == ""
    assert answer.stderr.startswith("error: ") and len(answer.stderr.splitlines()) == 1
    assert message in answer.stderr
