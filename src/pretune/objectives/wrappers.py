"""Base classes of objectives, tasks and backbones that wrap another one and change some of its behavior."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from pretune.backbones.backbone import TaskHeadParts
from pretune.objectives.objective import Objective
from pretune.objectives.task import Task
from pretune.packed import Packed

if TYPE_CHECKING:
    from pretune.backbones.backbone import Backbone
    from pretune.text.tokenizers.tokenizer import Tokenizer


class Delegated:
    """A class attribute that reads the member of the same name of the object that an instance wraps."""

    def __init__(self, wrapped: str) -> None:
        self.wrapped = wrapped  # the attribute with the wrapped object

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, wrapper: Any, owner: type | None = None) -> Any:
        return self if wrapper is None else getattr(getattr(wrapper, self.wrapped), self.name)


def to_task() -> Any:
    """Declare a member that a wrapper delegates to its `task`."""
    return Delegated("task")


def to_objective() -> Any:
    """Declare a member that a wrapper delegates to its `objective`."""
    return Delegated("objective")


def to_backbone() -> Any:
    """Declare a member that a wrapper delegates to its `backbone`."""
    return Delegated("backbone")


class WrappedObjective(Objective):
    """An objective that behaves like its field `objective` in everything that a subclass does not override."""

    objective: Objective

    name = to_objective()
    pattern = to_objective()
    owns_arrangement = to_objective()
    corrupts = to_objective()
    reads_all_layers = to_objective()
    two_sided = to_objective()
    grows = to_objective()
    learns_from_rows = to_objective()
    purpose = to_objective()
    kind = to_objective()
    shared_head = to_objective()
    stateful = to_objective()
    copies = to_objective()
    needs_host_sync = to_objective()
    arrange = to_objective()
    corrupt = to_objective()
    max_targets = to_objective()
    head = to_objective()
    loss = to_objective()
    sides = to_objective()
    max_packing = to_objective()
    read_rows = to_objective()


class WrappedTask(Task):
    """A task that behaves like its field `task` in everything that a subclass does not override."""

    task: Task

    name = to_task()
    pattern = to_task()
    owns_arrangement = to_task()
    corrupts = to_task()
    reads_all_layers = to_task()
    two_sided = to_task()
    grows = to_task()
    learns_from_rows = to_task()
    purpose = to_task()
    kind = to_task()
    shared_head = to_task()
    stateful = to_task()
    copies = to_task()
    needs_host_sync = to_task()
    arrange = to_task()
    corrupt = to_task()
    max_targets = to_task()
    head = to_task()
    loss = to_task()
    sides = to_task()
    max_packing = to_task()
    read_rows = to_task()

    each = to_task()
    combinable = to_task()
    settings = to_task()
    demonstration_sequences = to_task()
    distillable = to_task()
    reads_spans = to_task()
    in_context_template = to_task()
    in_context_prompt = to_task()
    classifies_texts = to_task()
    primary_metric = to_task()
    labels = to_task()
    multi = to_task()
    closed = to_task()
    single_label = to_task()
    uses_language_model_head = to_task()
    unwrapped = to_task()
    rows = to_task()
    read = to_task()
    check_labels = to_task()
    tokenize_examples = to_task()
    outputs = to_task()
    answers = to_task()
    combine = to_task()
    metric_sums = to_task()
    metrics = to_task()
    judge = to_task()
    best_options = to_task()
    majority_answers = to_task()
    simple_baselines = to_task()
    demonstration = to_task()
    describe_target = to_task()
    begin = to_task()

    def with_task(self, task: Task) -> Self:
        """Return the wrapper around another task."""
        return replace(self, task=task)  # type: ignore[type-var]

    def fit(self, examples: Any) -> Self:
        """Return the wrapper around the fitted task."""
        return self.with_task(self.task.fit(examples))

    def with_tokenizer(self, tokenizer: Tokenizer) -> Self:
        """Return the wrapper around the task that knows a tokenizer."""
        return self.with_task(self.task.with_tokenizer(tokenizer))

    def finish(self, head: Any) -> Self:
        """Return the wrapper around the finished task."""
        return self.with_task(self.task.finish(head))


class WrappedBackbone(TaskHeadParts):
    """A backbone that behaves like its attribute `backbone` in everything that a subclass does not override."""

    backbone: Any

    embed = to_backbone()
    width = to_backbone()
    depth = to_backbone()
    longest = to_backbone()
    groups = to_backbone()
    modules = to_backbone()
    vocabulary_head: Callable[..., Any] = to_backbone()
    pooler = to_backbone()
    classifier = to_backbone()
    tagger = to_backbone()
    answerer = to_backbone()
    choice_pooler = to_backbone()
    choice_output = to_backbone()
    # Members that only some backbones have: without one, access raises AttributeError, as on the backbone itself.
    backward = to_backbone()
    encoder = to_backbone()
    decode = to_backbone()
    stack = to_backbone()
    widths = to_backbone()
    direction_head = to_backbone()
    both_directions = to_backbone()

    def beside(self, other: Any) -> Any:
        """Return another backbone that reads the same tokens, cached if this one is."""
        return self.backbone.beside(other) if isinstance(self.backbone, WrappedBackbone) else other

    def __call__(self, *packed: Packed, **options: Any) -> Any:
        """Run the backbone."""
        return self.backbone(*packed, **options)


class CachedBackbone(WrappedBackbone):
    """A backbone that computes the states of the same tokens only once, for all objectives of a joint.

    With `keep`, it keeps these layers in every forward pass.
    """

    def __init__(self, backbone: Backbone | Any, keep: Any = None) -> None:
        self.backbone, self.keep = backbone, keep
        self.known: list[tuple[tuple[Packed, ...], Any, Any]] = []
        self.others: dict[int, CachedBackbone] = {}

    def beside(self, other: Any) -> CachedBackbone:
        """Return another backbone that reads the same tokens, cached as well; the same one at every call."""
        if id(other) not in self.others:
            self.others[id(other)] = CachedBackbone(other, self.keep)
        return self.others[id(other)]

    def __call__(self, *packed: Packed, **options: Any) -> Any:
        """Return the states of some tokens, from the cache if they are there."""
        options = {name: value for name, value in options.items() if value is not None}
        if self.keep is not None:
            options.setdefault("keep", self.keep)
        for known, given, states in self.known:
            if all(a is b for a, b in zip(known, packed, strict=True)) and given == options:
                return states
        states = self.backbone(*packed, **options)
        self.known.append((packed, options, states))
        return states
