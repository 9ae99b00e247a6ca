"""The registry of model families: built-in families, families registered in Python, and those of installed packages."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module

from pretune.families.family import Family
from pretune.runtime.errors import PretuneError, suggest
from pretune.runtime.plugins import entry_point_objects

GROUP = "pretune.families"


class Families(MutableMapping[str, Family]):
    """A mapping from `model_type` in config.json to families; declared families are imported when they are first read.

    >>> families = Families()
    >>> families.declare("gpt2", "pretune.families.decoders.gpt2:GPT2")
    >>> families["gpt2"].name
    'gpt2'
    """

    def __init__(self) -> None:
        self._found: dict[str, Family | str] = {}  # families, and the places of those that are not imported yet

    def declare(self, name: str, place: str) -> None:
        """Add a family that is imported when it is first read; `place` is its module and its name there, as a:B."""
        self._found[name] = place

    def __getitem__(self, name: str) -> Family:
        found = self._found[name]
        if isinstance(found, str):
            module, _, attribute = found.partition(":")
            self._found[name] = found = getattr(import_module(module), attribute)
        return found  # type: ignore[return-value]

    def __setitem__(self, name: str, family: Family) -> None:
        self._found[name] = family

    def __delitem__(self, name: str) -> None:
        del self._found[name]

    def __contains__(self, name: object) -> bool:
        return name in self._found

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


FAMILIES = Families()  # installed packages add to it lazily


def register_family(family: Family) -> Family:
    """Register a model family under its name, the `model_type` of config.json, and return it.

    An installed package can instead register a family by an entry point with the name of the family:

        [project.entry-points."pretune.families"]
        my-model = "my_package.my_model:MY_MODEL"
    """
    if FAMILIES.setdefault(family.name, family) is not family:
        raise PretuneError(f"a model family named {family.name!r} is already registered; choose another name")
    return family


def known_families() -> dict[str, Family]:
    """Return all registered model families by name, including those of installed packages."""
    for name, family in entry_point_objects(GROUP).items():
        if not isinstance(family, Family) or family.name != name:
            raise PretuneError(
                f"the entry point {name!r} of the group {GROUP} must be a pretune.families.family.Family with that name; "
                "repair or uninstall the package that registers it"
            )
        register_family(family)
    return dict(FAMILIES)


def find_family(name: str, where: str, class_name: str = "") -> Family:
    """Return the family whose `model_type` in config.json is `name`, or raise an error that begins with `where`.

    If the family has variants, the `transformers` class `class_name` selects one.

    >>> find_family("t5", "config.json", "T5EncoderModel").template.target
    ()
    """
    families = FAMILIES if name in FAMILIES else known_families()
    if name not in families:
        raise PretuneError(f"{where}: unknown model family {name!r}; {suggest(name, families)}")
    return families[name].variant(class_name)
