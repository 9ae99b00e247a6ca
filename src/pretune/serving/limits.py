"""The limits of the server on requests, queues, and times."""

from __future__ import annotations

from dataclasses import dataclass

from pretune.runtime.errors import PretuneError

MAX_ATTENTION_TOKENS = 128  # a map of 12 layers with 12 heads has 2.4 million weights at this length
MAX_MASKS = 16  # of a text; filling k masks one by one takes k passes through the model
MAX_NEIGHBOR_WORDS = 5_000  # of the texts in which neighbors are looked for


@dataclass(frozen=True)
class ServingLimits:
    """The limits of a server; times are in seconds."""

    max_batch_size: int = 32  # texts that are computed together
    max_delay: float = 0.002  # the longest time that a text waits for others while its model is idle
    max_queue: int = 512  # waiting texts per model; more are refused with 429
    max_streams: int = 16  # texts per model that are generated piece by piece at a time
    timeout: float = 60.0  # for a request, from its last byte to its result
    body_timeout: float = 20.0  # for the body of a request to arrive
    max_body: int = 2 << 20  # bytes
    max_texts: int = 256  # per request
    max_characters: int = 100_000  # per text
    max_new_tokens: int = 512  # per generated text

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 0 or (not value and name != "max_delay"):
                raise PretuneError(f"{name} {value:g} is too small; give a number above 0")
