"""The command line: one command per verb, built from the verb's signature and docstring.

Each command also takes --recipe FILE, --set KEY=VALUE (any key of the recipe) and --json (print the result as one JSON object on
stdout). Options take precedence over --set, --set over the recipe, and the recipe over the defaults.
"""

from __future__ import annotations

import errno
import os
import sys
from collections import UserDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import App, CycloptsError, Group, Parameter

import pretune
from pretune.runtime.errors import PretuneError, shorten
from pretune.verbs.commands import COMMANDS, GROUPS, STAGES, check_command, requested_command


class Verbs(UserDict[str, Any]):
    """A mapping of command names to verbs, the functions of `pretune`, each imported when it is looked up."""

    def __getitem__(self, name: str) -> Callable[..., Any]:
        verb = super().__getitem__(name)
        return getattr(pretune, verb) if isinstance(verb, str) else verb


VERBS = Verbs({name: command.verb for name, command in COMMANDS.items()})
FILE_ERRORS = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR,
    errno.ENAMETOOLONG, errno.ELOOP, errno.EIO, errno.ESTALE, errno.ENOENT, errno.ENOTEMPTY, errno.EBUSY, errno.ETIMEDOUT,
)  # fmt: skip
OTHER_ADVICE = {errno.ENAMETOOLONG: "shorten the name", errno.ENOENT: "was it removed while the command ran?"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command with command-line arguments; a user's error prints one line on stderr and exits with status 1."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        requested = requested_command(arguments)
        if requested is None:
            check_command(arguments)
        else:
            from pretune.verbs.command_line import check_flags

            check_flags(VERBS[requested], arguments)
        make_app(requested)(arguments, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        command = f"pretune {requested}" if requested else "pretune"
        _fail(f"{' '.join(str(error).split())} See `{command} --help`.")
    except PretuneError as error:
        _fail(str(error))
    except BrokenPipeError:  # the reader of the output, such as `head`, is done
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        if error.errno not in FILE_ERRORS:
            raise
        advice = OTHER_ADVICE.get(error.errno, "free some space, or choose another place")
        _fail(f"{shorten(str(error.filename or 'output'), 200)}: {error.strerror}; {advice}")
    except KeyboardInterrupt:
        from pretune.runtime.progress import log_info

        log_info("interrupted")
        sys.exit(130)
    except (MemoryError, RuntimeError) as error:
        from pretune.runtime.devices import out_of_memory  # imports torch, which `--help` does without

        where = out_of_memory(error)
        if where is None:
            raise
        _fail(
            f"{where} is out of memory; use smaller batches (--set batch.microbatch_tokens=…, batch.size=… or batch.max_length=…), shorter "
            "texts, or a smaller model"
        )


def _fail(message: str) -> None:
    """Print an error message, with the process rank under torchrun, and exit."""
    rank = os.environ.get("RANK", "0")
    print(f"error: {message}" if rank == "0" else f"error in process {rank}: {message}", file=sys.stderr, flush=True)
    sys.exit(1)


def make_app(requested: str | None = None) -> App:
    """Return the command-line application; verbs are imported when cyclopts looks up their command.

    The command `requested` has its full help, and all others one line.
    """
    app = App(
        name="pretune",
        help="Transfer learning for text, end to end: pretrain, fine-tune, evaluate, compress.",
        version=pretune.__version__,
        help_format="plaintext",
        default_parameter=Parameter(negative_iterable=()),
    )
    stages = {stage: Group(stage, sort_key=number) for number, stage in enumerate(STAGES)}
    app.command(install_completion, name="--install-completion")
    flags = Group("Options", sort_key=len(STAGES))
    for flag in ("--help", "--version", "--install-completion"):
        app[flag].group = flags
    groups: dict[str, App] = {}
    for number, (name, command) in enumerate(COMMANDS.items()):
        group_name, _, short = name.rpartition(" ")
        parent: App = app
        stage: Group | None = stages[command.stage]
        if group_name:
            if group_name not in groups:
                groups[group_name] = App(name=group_name, help=GROUPS[group_name], group=stage, sort_key=number)
                app.command(groups[group_name])
            parent, stage = groups[group_name], None
        summary = None if name == requested else command.summary
        parent.command(f"{__name__}:{name}", name=short, help=summary, group=stage, sort_key=number)
    return app


def install_completion(*, shell: Literal["bash", "zsh", "fish"] | None = None, output: Path | None = None) -> None:
    """Install shell completion of commands and options.

    Adds a line that loads the completion script to ~/.bashrc or ~/.zshrc; fish finds the script by itself.

    Parameters
    ----------
    shell
        Shell to complete in; by default the one that runs this command.
    output
        File to write the script to, without changing any configuration.
    """
    from cyclopts.completion.detect import ShellDetectionError

    try:
        script = make_app().install_completion(shell=shell, output=output, add_to_startup=output is None)
    except ShellDetectionError as error:
        raise PretuneError("Your shell could not be detected; name it with --shell bash, zsh, or fish.") from error
    print(f"{script}: {'start a new shell to use it' if output is None else 'load it into your shell with `source`'}")


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Callable[..., None]:
        """Return the cyclopts command of a verb; cyclopts looks it up by import path when the command is used."""
        if name not in COMMANDS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from pretune.verbs.command_line import make_command

        return make_command(name, VERBS[name])
