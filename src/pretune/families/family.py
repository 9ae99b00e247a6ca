"""The description of a model family: its configuration, architecture, and checkpoint layout."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, get_origin, get_type_hints

from pretune.backbones.backbone import Backbone
from pretune.families.config_bounds import check_bounds
from pretune.families.config_keys import DESCRIPTIVE_KEYS, IGNORED_KEYS, UNSUPPORTED_KEYS
from pretune.families.parameter_names import SEQ2SEQ_OBJECTIVES, NameTable
from pretune.runtime.errors import LONGEST_QUOTE, PretuneError, shorten
from pretune.runtime.parsing import as_tuples, validate_schema
from pretune.text.tokenizers.template import Template

# The values of a config.json key that a family supports, or a function that computes them from the configuration.
SupportedValues = Sequence[Any] | Callable[[Any], Sequence[Any]]


def token_classes(name: str, answering: str = "QuestionAnswering") -> dict[frozenset[str], str]:
    """Return a mapping from the heads for tagging and question answering to `transformers` classes.

    The names of the classes begin with `name`; the one for question answering ends with `answering`.

    >>> token_classes("Bert")[frozenset({"tag"})]
    'BertForTokenClassification'
    """
    return {frozenset({"tag"}): f"{name}ForTokenClassification", frozenset({"answer"}): f"{name}For{answering}"}


def seq2seq_classes(name: str) -> dict[frozenset[str], str]:
    """Return a mapping from sets of task heads to the `transformers` classes of an encoder-decoder.

    The names of the classes begin with `name`, such as T5.
    """
    return {
        frozenset(): f"{name}Model",
        **{frozenset({objective}): f"{name}ForConditionalGeneration" for objective in SEQ2SEQ_OBJECTIVES},
        frozenset({"classify"}): f"{name}ForSequenceClassification",
        frozenset({"answer"}): f"{name}ForQuestionAnswering",
    }


def encoder_classes(name: str, answering: str = "QuestionAnswering") -> dict[frozenset[str], str]:
    """Return a mapping from sets of task heads to the usual `transformers` classes of an encoder.

    The names of the classes begin with `name`, such as Bert; the one for question answering ends with `answering`.
    """
    return {
        frozenset(): f"{name}Model",
        frozenset({"mlm"}): f"{name}ForMaskedLM",
        frozenset({"classify"}): f"{name}ForSequenceClassification",
        frozenset({"choose"}): f"{name}ForMultipleChoice",
        **token_classes(name, answering),
    }


@dataclass(frozen=True)
class Family:
    """A published architecture: its configuration, backbone, input template and parameter names in checkpoints."""

    name: str  # the `model_type` in config.json
    config: type[Any]  # a dataclass whose fields are keys of config.json
    build: Callable[[Any], Backbone]  # builds the backbone, with random parameters, from a configuration
    template: Template  # the special tokens around the texts of an input
    table: NameTable  # the published parameter names
    classes: Mapping[frozenset[str], str]  # maps each set of heads to the class of `transformers` that has them
    # Maps further classes of `transformers` to those of their heads that pretune has; other heads are not loaded.
    other_classes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    # Maps classes of `transformers` whose heads pretune does not have to a description of these heads. The models are
    # loaded without their heads and cannot be used for predictions.
    unsupported_classes: Mapping[str, str] = field(default_factory=dict)
    # Maps values of `classifier_pooling` in config.json to poolings. The key "" stands for layouts without that entry;
    # families without the key pool with the start token.
    poolings: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)  # maps alternative names of config.json keys to the keys
    supported: Mapping[str, SupportedValues] = field(default_factory=dict)  # supported values of config.json keys
    harmless: Mapping[str, str] = field(default_factory=dict)  # keys that do not change the output, and the reason
    companions: tuple[str, ...] = ()  # exports of heads that are published in this layout too (ELECTRA's generator)
    in_transformers: bool = True  # whether `transformers` reads this layout
    variants: tuple[Family, ...] = ()  # same `model_type`, but another architecture, identified by its class

    def variant(self, class_name: str) -> Family:
        """Return the variant of this family to which a `transformers` class belongs, or else the family itself."""
        return next((family for family in self.variants if family.has_class(class_name)), self)

    def has_class(self, class_name: str) -> bool:
        """Return whether a `transformers` class belongs to a model family."""
        return class_name in {*self.classes.values(), *self.other_classes}

    def read_config(self, content: Mapping[str, Any], where: str = "") -> Any:
        """Check the content of a config.json, and return it as an instance of the family's configuration class.

        `where` names the file in error messages.
        """
        where = where or self.name
        values = {key: value for key, value in content.items() if key not in self.aliases}
        for alias, key in self.aliases.items():
            value = content.get(alias)
            if value is not None and values.setdefault(key, value) != value:
                raise PretuneError(
                    f"{where}: {alias} is {_json(value)}, but {key}, which means the same, is {_json(values[key])}; "
                    "correct one of the two keys"
                )
        for key, advice in UNSUPPORTED_KEYS.items():
            if content.get(key):
                raise PretuneError(f"{where}: the model cannot be loaded because of the key {key}: {advice}")
        known = get_type_hints(self.config)
        # Token ids that the file sets to null come from the tokenizer.
        stated = {key: value for key, value in values.items() if value is not None or not key.endswith("_token_id")}
        own = {key: _typed(value, known[key], f"{where}: {key}") for key, value in stated.items() if key in known}
        for key, value in own.items():
            check_bounds(key, value, where)
        config = self.config(**own)
        for key, allowed in self.supported.items():
            value = getattr(config, key) if key in known else content.get(key)
            supported = allowed(config) if callable(allowed) else allowed
            if value not in supported and not (value is None and key not in known):
                listed = " or ".join(map(_json, supported))
                raise PretuneError(
                    f"{where}: {key} {_json(value)} is not supported for {self.name}; use a model with {key} {listed}"
                )
        return config

    def unknown_keys(self, content: Mapping[str, Any]) -> list[str]:
        """Return the keys of a config.json that a model family does not know and that may change the output."""
        known = {field.name for field in fields(self.config)}
        known |= {*DESCRIPTIVE_KEYS, *IGNORED_KEYS, *UNSUPPORTED_KEYS, *self.aliases, *self.supported, *self.harmless}
        return sorted(key for key, value in content.items() if key not in known and value is not None)

    def heads_of(self, class_name: str) -> frozenset[str]:
        """Return the task heads of a `transformers` class; if it stands for several sets of heads, the first set."""
        published = (heads for heads, name in self.classes.items() if name == class_name)
        return next(published, self.other_classes.get(class_name, frozenset()))

    def is_tied(self, config: Any) -> bool:
        """Return whether the output matrix of the language model is tied to the token embedding."""
        return not self.table.output or bool(config.tie_word_embeddings)


def _json(value: Any) -> str:
    return shorten(json.dumps(value, default=str), LONGEST_QUOTE)


def _typed(value: Any, expected: Any, where: str) -> Any:
    """Convert a value of config.json to the type `expected`, or raise an error that starts with `where`."""
    if expected is bool and value in (0, 1):  # some files write booleans as numbers
        return bool(value)
    return validate_schema(as_tuples(value) if get_origin(expected) is tuple else value, expected, where)
