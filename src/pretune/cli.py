"""The command line: one command per verb, built from the verb's signature and docstring.

Each command also takes --recipe FILE, --set KEY=VALUE (any key of the recipe) and --json (print the result as one JSON
object on stdout). Options take precedence over --set, --set over the recipe, and the recipe over the defaults.
"""

from __future__ import annotations

import errno
import os
import sys
from collections import UserDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pretune
from pretune.runtime.errors import PretuneError, shorten
from pretune.verbs.command_table import COMMANDS, GROUPS, check_command, requested_command
from pretune.verbs.help_text import ABOUT, format_command, format_group, format_overview

if TYPE_CHECKING:
    from cyclopts import App


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
    """Run the command that `arguments` name, by default those of the process.

    For an error that the user can mend, one line is printed to stderr, and the process exits with status 1.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        requested = requested_command(arguments)
        if requested is None:
            check_command(arguments)
        if (text := help_text(requested, arguments)) is not None:
            print(text)
        else:
            run(requested, arguments)
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

        log_info("the command was interrupted")
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


def help_text(requested: str | None, arguments: Sequence[str]) -> str | None:
    """Return the help that command-line arguments ask for, or None if they do not ask for help.

    `requested` is the name of the command in the arguments, if there is one.
    """
    wanted = bool({"--help", "-h"} & {*arguments})
    if requested is not None:
        return format_command(requested, VERBS[requested]) if wanted else None
    if arguments and arguments[0] in GROUPS:
        return format_group(arguments[0])
    return format_overview() if not arguments or arguments[0] in ("--help", "-h") else None


def run(requested: str | None, arguments: Sequence[str]) -> None:
    """Parse command-line arguments and run the command that they name; `requested` is its name, for error messages."""
    from cyclopts import CycloptsError

    if requested is not None:
        from pretune.verbs.command_builder import check_flags

        check_flags(VERBS[requested], arguments)
    try:
        make_app()(arguments, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        see = f"pretune {requested} --help" if requested else "pretune --help"
        raise PretuneError(f"{error} See `{see}`.") from error


def make_app() -> App:
    """Return the cyclopts application, which imports the function of a command only when that command is used."""
    from cyclopts import App, Parameter

    defaults = Parameter(negative_iterable=())
    app = App(
        name="pretune", help=ABOUT, version=pretune.__version__, help_format="plaintext", default_parameter=defaults
    )
    app.command(install_completion, name="--install-completion")
    groups = {name: App(name=name, help=text) for name, text in GROUPS.items()}
    for group in groups.values():
        app.command(group)
    for name, command in COMMANDS.items():
        group_name, _, short = name.rpartition(" ")
        parent = groups[group_name] if group_name else app
        parent.command(f"{__name__}:{name}", name=short, help=command.summary)
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
        raise PretuneError("Your shell cannot be detected; name it with --shell bash, zsh, or fish.") from error
    print(f"{script}: {'start a new shell to use it' if output is None else 'load it into your shell with `source`'}")


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Callable[..., None]:
        """Return the cyclopts command of a verb; cyclopts looks it up by import path when the command is used."""
        if name not in COMMANDS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from pretune.verbs.command_builder import make_command

        return make_command(name, VERBS[name])
