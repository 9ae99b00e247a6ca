from __future__ import annotations

import re

import pytest

import pretune
from pretune.cli import VERBS
from pretune.verbs.command_builder import ADVANCED, ALL_COMMANDS, COMMON, GROUPS_OF_OPTIONS, list_options
from pretune.verbs.command_table import COMMANDS, GROUPS, STAGES, requested_command
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


def sections(text: str) -> dict[str, list[str]]:
    """Return the lines of the overview by the heading above them; usage and description come before."""
    found: dict[str, list[str]] = {}
    for line in text.split("\n\n", 2)[2].splitlines():
        if line and not line.startswith(" "):
            lines = found.setdefault(line, [])
        elif line:
            lines.append(line)
    return found


def test_help_lists_each_command_on_one_line_under_its_stage() -> None:
    shown = sections(run("--help").stdout)
    assert [*shown] == [*STAGES, "Options"]
    for stage in STAGES:
        for line in shown[stage]:
            name, text = line.split(maxsplit=1)
            assert text == (GROUPS[name] if name in GROUPS else COMMANDS[name].summary)
            assert len(line) <= 80 and line[2] != " "
    listed = {line.split()[0] for stage in STAGES for line in shown[stage]}
    assert listed == {name.split()[0] for name in COMMANDS}
    assert run().stdout == run("-h").stdout == run("--help").stdout
    for group in GROUPS:
        text = run(group, "--help").stdout
        assert text == run(group).stdout
        assert all(c.summary in text for name, c in COMMANDS.items() if name.startswith(f"{group} "))


def groups(name: str) -> dict[str, list[str]]:
    """Return the options of a command by the heading under which its help shows them."""
    found: dict[str, list[str]] = {}
    for option in list_options(VERBS[name]):
        found.setdefault(option.group, []).append(option.name)
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_common_options_first_and_those_of_all_commands_last(name: str) -> None:
    shown = groups(name)
    assert shown[ALL_COMMANDS] == ["recipe", "set", "json"]
    common, advanced = shown.get(COMMON, []), shown.get(ADVANCED, [])
    assert len(common) <= 14
    declared = VERBS[name].common  # type: ignore[attr-defined]
    if declared is None:
        assert len(common) <= MANY, f"{name} has many options; declare the common ones in its `@verb(common=…)`"
    else:
        assert set(declared) <= set(common) and advanced
        assert len(set(declared)) == len(declared)
    text = run(*name.split(), "--help").stdout
    found = sections(text)
    headings = [heading for heading in found if heading in GROUPS_OF_OPTIONS]
    assert headings == [group for group in GROUPS_OF_OPTIONS if group in shown]
    for option in list_options(VERBS[name]):
        line = next(line for line in found[option.group] if option.spelling in re.split(r"[ ,.]+", line[:40]))
        assert line.startswith("  ") and line[2] != " "
        assert option.help[:20].split()[0] in text
    assert all(len(line) <= 80 for lines in found.values() for line in lines if "://" not in line)


def test_help_shows_placeholders_choices_and_defaults() -> None:
    text = " ".join(run("finetune", "--help").stdout.split())
    assert text.startswith("Usage: pretune finetune [MODEL] [TRAIN] [OPTIONS] Fine-tune a model")
    assert "--epochs FLOAT Passes over the training data; by default 3, or more for few examples" in text
    assert "--columns.KEY VALUE" in text and "--dev TEXT..." in text
    assert "--report, --no-report Write report.html" in text and "[default: on]" in text
    assert "--drop-invalid Drop" in text
    assert "--kind CHOICE" in run("tokenizer", "train", "--help").stdout
    assert "Choices: wordpiece, bpe, " in " ".join(run("tokenizer", "train", "--help").stdout.split())


def test_required_options_are_common() -> None:
    assert {"model", "train", "out"} <= set(groups("finetune")[COMMON])
    assert "text" in groups("finetune")[COMMON] and "learning_curve" in groups("finetune")[ADVANCED]


@pytest.mark.parametrize(
    ("words", "name"),
    [("tokenizer train x", "tokenizer train"), ("tokenizer", None), ("--help", None), ("fill", "fill")],
)
def test_command_is_found_from_its_first_words(words: str, name: str | None) -> None:
    assert requested_command(words.split()) == name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("fintune a b", r"There is no command 'fintune'; did you mean 'finetune'\?"),
        ("tokenizer trian x", r"There is no command 'tokenizer trian'; did you mean 'tokenizer train'\?"),
        ("xyzzy", "There is no command 'xyzzy'; see `pretune --help`"),
        ("vector", r"did you mean 'vectors'\?"),
        (
            "finetune a b --lable x",
            r'Unknown option: "?--lable"?\. Did you mean "?--label"?\? See `pretune finetune --help`\.',
        ),
        ("tokenizer train x --kind wordpeice", 'Choose from: .*"wordpiece"'),
        ("finetune a b --epochs many", r'Invalid value for "?--epochs"?'),
    ],
)
def test_misspelled_commands_and_options_are_refused_in_one_line(words: str, message: str) -> None:
    answer = run(*words.split(), check=False)
    assert answer.returncode == 1 and answer.stdout == ""
    assert answer.stderr.startswith("error: ") and len(answer.stderr.splitlines()) == 1
    assert re.search(message, answer.stderr.replace("'wordpiece'", '"wordpiece"'))
