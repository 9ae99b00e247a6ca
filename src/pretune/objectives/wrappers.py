"""Base classes of objectives, tasks and backbones that wrap another one and change some of its behavior."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Self, TypeVar

from pretune.backbones.backbone import Backbone, TaskHeadParts
from pretune.objectives.objective import Objective
from pretune.objectives.task import Task
from pretune.packed import Packed
from pretune.text.tokenizers.tokenizer import Tokenizer

C = TypeVar("C", bound=type)


class Delegated:
    """A descriptor that forwards reading an attribute to the object that an instance wraps.

    `wrapped` is the attribute that holds the wrapped object, and `name` the attribute to read from it.
    """

    def __init__(self, wrapped: str, name: str) -> None:
        self.wrapped, self.name = wrapped, name  # the attribute with the wrapped object, and the member to read

    def __get__(self, wrapper: Any, owner: type | None = None) -> Any:
        return self if wrapper is None else getattr(getattr(wrapper, self.wrapped), self.name)


def delegate(wrapped: str, members: Iterable[str]) -> Callable[[C], C]:
    """Return a class decorator that lets instances read `members` from the object that they wrap.

    `wrapped` is the attribute with the wrapped object. Members that the class itself defines are not forwarded.
    """

    def decorate(wrapper: C) -> C:
        for name in members:
            if name not in vars(wrapper):
                setattr(wrapper, name, Delegated(wrapped, name))
        return wrapper

    return decorate


def public_members(contract: type) -> set[str]:
    """Return the names of all public members of the class `contract` and its base classes."""
    return {name for base in contract.__mro__[:-1] for name in vars(base) if not name.startswith("_")}


@delegate("objective", {"name", *public_members(Objective)})
class WrappedObjective(Objective):
    """An objective that behaves like its field `objective` in everything that a subclass does not override."""

    objective: Objective


@delegate("task", {"name", *public_members(Task)})
class WrappedTask(Task):
    """A task that behaves like its field `task` in everything that a subclass does not override."""

    task: Task

    def with_task(self, task: Task) -> Self:
        """Return a copy of this wrapper that wraps the task `task` instead of its own."""
        return replace(self, task=task)  # type: ignore[type-var]

    def fit(self, examples: Any) -> Self:
        """Fit the wrapped task to training examples, and return a copy of the wrapper with the fitted task."""
        return self.with_task(self.task.fit(examples))

    def with_tokenizer(self, tokenizer: Tokenizer) -> Self:
        """Return a copy of the wrapper in which the wrapped task's fields that depend on the tokenizer are set."""
        return self.with_task(self.task.with_tokenizer(tokenizer))

    def finish(self, head: Any) -> Self:
        """Fold statistics of the labels, such as their mean, into a trained head, as the wrapped task does.

        Return a copy of the wrapper with the task that no longer has these statistics.
        """
        return self.with_task(self.task.finish(head))


# The last members are those that only some backbones have; access raises AttributeError as on the backbone itself.
BACKBONE_MEMBERS = (
    "embed", "width", "depth", "longest", "groups", "modules", "vocabulary_head", "pooler", "classifier", "tagger", "answerer",
    "choice_pooler", "choice_output",
    "backward", "encoder", "decode", "copy_decoder", "with_decoder", "stack", "widths", "direction_head", "both_directions",
)  # fmt: skip


@delegate("backbone", BACKBONE_MEMBERS)
class WrappedBackbone(TaskHeadParts):
    """A backbone that behaves like its attribute `backbone` in everything that a subclass does not override."""

    backbone: Any

    def cached_other(self, other: Any) -> Any:
        """Return the backbone `other`, with a cache of its hidden states if this backbone has a cache.

        Distillation uses it to cache the teacher's states together with the student's.
        """
        return self.backbone.cached_other(other) if isinstance(self.backbone, WrappedBackbone) else other

    def __call__(self, *packed: Packed, **options: Any) -> Any:
        """Run the wrapped backbone on packed tokens and return its output."""
        return self.backbone(*packed, **options)


class CachedBackbone(WrappedBackbone):
    """A backbone that caches its hidden states, so that several objectives share one forward pass.

    `keep` selects the layers whose states are kept.
    """

    def __init__(self, backbone: Backbone | Any, keep: Any = None) -> None:
        self.backbone, self.keep = backbone, keep
        self.known: list[tuple[tuple[Packed, ...], Any, Any]] = []
        self.others: dict[int, CachedBackbone] = {}

    def cached_other(self, other: Any) -> CachedBackbone:
        """Return the backbone `other` with a cache of its states; the same backbone gives the same object again."""
        if id(other) not in self.others:
            self.others[id(other)] = CachedBackbone(other, self.keep)
        return self.others[id(other)]

    def __call__(self, *packed: Packed, **options: Any) -> Any:
        """Return the hidden states of packed tokens, from the cache if the same tokens were read before."""
        options = {name: value for name, value in options.items() if value is not None}
        if self.keep is not None:
            options.setdefault("keep", self.keep)
        for known, given, states in self.known:
            if all(a is b for a, b in zip(known, packed, strict=True)) and given == options:
                return states
        states = self.backbone(*packed, **options)
        self.known.append((packed, options, states))
        return states
