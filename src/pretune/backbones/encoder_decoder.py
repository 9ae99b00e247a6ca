"""An encoder, and a decoder that looks at it: T5, BART, translation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from torch import Tensor, nn

from pretune.backbones.backbone import Keep, States, TaskParts, kept
from pretune.backbones.encoder import Encoder
from pretune.nn.attention.kv_cache import Cache
from pretune.nn.attention.multi_head import Flow
from pretune.nn.attention.packed_layout import cross_layout, self_layout
from pretune.nn.embeddings import Embeddings
from pretune.packed import Packed


class EncoderDecoder(TaskParts, nn.Module):
    """Two packed streams: sequence i of the target is decoded from sequence i of the source."""

    def __init__(
        self,
        encoder: Encoder,
        embed: Embeddings,
        layers: Iterable[nn.Module],
        *,
        score: nn.Module | None = None,
        norm: nn.Module | None = None,
    ) -> None:
        """`embed`, `score` and `norm` are the decoder's; its token vectors may be the encoder's own."""
        super().__init__()
        self.encoder = encoder
        self.embed = embed
        self.score = score
        self.layers = nn.ModuleList(layers)
        self.norm = norm if norm is not None else nn.Identity()
        self.vocabulary_head = encoder.vocabulary_head
        self.take_parts(encoder)

    @property
    def width(self) -> int:
        """Width of the decoder's states."""
        return self.embed.width

    @property
    def depth(self) -> int:
        """How many layers of the decoder follow on its embeddings."""
        return len(self.layers)

    @property
    def longest(self) -> int | None:
        """Positions the model has; None: any."""
        return self.encoder.longest

    def forward(self, source: Packed, target: Packed, carry: Cache | None = None, keep: Keep = "last") -> States:
        """States of the decoder's kept layers, (n, width) each. With a Cache, the target's tokens follow those it holds,
        and the source is read once."""
        encoded = self.encoder(source).last if carry is None or carry.source is None else None
        return self.decode(target, source, encoded, carry, keep)

    def decode(
        self,
        target: Packed,
        source: Packed,
        encoded: Tensor | None,
        carry: Cache | None = None,
        keep: Keep = "last",
    ) -> States:
        """The decoder alone, on the encoder's states (m, width) of the source: computed once, they serve any target.

        None where a Cache has what it needs of them.
        """
        wanted = kept(keep, len(self.layers))
        x: Tensor = self.embed(target)
        if carry is None:
            layout, source_layout = self_layout(target), cross_layout(target, source)
        else:
            layout, source_layout = carry.layout(target), carry.source_layout(target, source)
        flow = Flow(layout, target.pattern, source=encoded, source_layout=source_layout, cache=carry)
        if self.score is not None:
            flow.bend = self.score(x, flow.layout)
        layers = [x] if 0 in wanted else []
        for number, layer in enumerate(self.layers, 1):
            x = layer(x, replace(flow, depth=number - 1))
            if number == len(self.layers):
                x = self.norm(x)
            if number in wanted:
                layers.append(x)
        return States(layers, carry)

    def groups(self) -> list[tuple[str, list[nn.Module]]]:
        """From the encoder's embedding to the decoder's top."""
        groups = [(f"encoder {name}", modules) for name, modules in self.encoder.groups()]
        groups[0][1].extend([self.embed] if self.score is None else [self.embed, self.score])
        groups += [(f"decoder layer {number}", [layer]) for number, layer in enumerate(self.layers)]
        groups[-1][1].append(self.norm)
        return groups
