"""The registry of model families: built-in families, families registered in Python, and those of installed packages."""

from __future__ import annotations

from pretune.families.family import Family
from pretune.runtime.errors import PretuneError, suggest
from pretune.runtime.plugins import entry_point_objects

GROUP = "pretune.families"
FAMILIES: dict[str, Family] = {}  # by `model_type`; installed packages add to it lazily


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
