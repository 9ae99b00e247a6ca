"""Speculative decoding: a small draft model proposes tokens, and the target model checks all of them in one forward pass.

The texts follow the distribution of the target model exactly (Leviathan et al., 2023, arXiv:2211.17192; Chen et al., 2023,
arXiv:2302.01318): greedy texts are the same as without a draft model; a sampled proposal x is accepted with the
probability min(1, p(x) / q(x)), where p and q are the probabilities of the target and of the draft model, and is otherwise
replaced by a token sampled from max(0, p - q), normalized.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from pretune.inference.generation.beam_search import Hypothesis
from pretune.inference.generation.decoding_loops import GenerationConfig, add_token, choose_tokens, is_unfinished
from pretune.inference.generation.decoding_session import DecodingSession
from pretune.inference.generation.sampling import draw, token_probabilities
from pretune.inference.generation.static_decoding import StaticSession, begin_steps
from pretune.inference.generation.stop_strings import StopCondition
from pretune.models.model import Model
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import uniform

PROPOSALS = 4  # tokens that the draft model proposes before the target model checks them


def check_draft(decoding: GenerationConfig, target: Model, draft: Model, prompts: Sequence[list[int]]) -> None:
    """Raise an error if the draft model cannot propose tokens for continuations of these tokenized prompts."""
    if decoding.num_beams > 1 or decoding.choices or decoding.penalizes_repetition:
        raise PretuneError(
            "a draft model supports greedy decoding and sampling only; leave out num_beams, choices, repetition_penalty, "
            "and no_repeat_ngram_size, or the draft model"
        )
    sizes = [model.require_tokenizer().target.size for model in (target, draft)]
    if sizes[0] != sizes[1]:
        raise PretuneError(
            f"the draft model has a vocabulary of {sizes[1]} tokens, and the model has one of {sizes[0]}; choose a draft model "
            "with the same tokenizer"
        )
    longest, most = max(map(len, prompts)), draft.backbone.max_positions
    if most is not None and longest > most:
        raise PretuneError(
            f"the draft model has {most} positions, so a prompt of {longest} tokens is too long for it; shorten the prompt, or "
            "leave out the draft model"
        )


def speculative_steps(
    models: tuple[Model, Model],
    prompts: Sequence[list[int]],
    rows: Sequence[int],
    limits: Sequence[int],
    decoding: GenerationConfig,
    end: set[int],
    ended: StopCondition | None = None,
) -> Iterator[list[Hypothesis]]:
    """Continue prompts by greedy decoding or sampling; after each check of proposals, yield the continuations so far.

    `models` are the target and the draft model. `sample_steps` explains the other parameters.
    """
    slots = max(len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True)) + PROPOSALS + 1
    sessions = [DecodingSession(model, len(prompts), slots) for model in models]
    logits, _ = (session.read(prompts) for session in sessions)
    target, draft = (begin_steps(session) for session in sessions)
    texts = [Hypothesis([], 0.0) for _ in prompts]
    going = list(range(len(prompts)))  # the prompts of the sequences of both sessions
    new = choose_tokens(logits, decoding, rows, 0)[:, None].tolist()
    while True:
        for i, tokens in zip(going, new, strict=True):
            for token in tokens:
                add_token(texts[i], token, limits[i], end, ended)
        stay = [k for k, i in enumerate(going) if is_unfinished(texts[i], limits[i])]
        yield texts
        if not stay:
            target.close()
            draft.close()
            return
        draft.keep(stay)
        going = [going[k] for k in target.keep(stay)]
        written = [texts[i].ids for i in going]
        whole = [[*prompts[i], *ids] for i, ids in zip(going, written, strict=True)]
        draws = RoundDraws(decoding, np.array([rows[i] for i in going]), np.array(list(map(len, written))))
        new = next_tokens(target, draft, whole, draws)


class RoundDraws:
    """The random numbers of one round of proposals and their check, for several texts."""

    def __init__(self, decoding: GenerationConfig, rows: Array, lengths: Array) -> None:
        """Create the draws of texts with the numbers `rows`, of which `lengths` tokens have been generated, (b,) each."""
        self.decoding, self.rows, self.lengths = decoding, rows, lengths

    def uniform(self, purpose: str, place: int | Array = 0) -> Array:
        """Return a random number in [0, 1) per text, (b,), or per text and place, (b, places), for a purpose."""
        rows, lengths = self.rows, self.lengths
        if isinstance(place, np.ndarray):
            rows, lengths = rows[:, None], lengths[:, None]
        return uniform(self.decoding.seed, purpose, rows, lengths, place)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probabilities with which tokens are sampled, given logits, (b, vocabulary) each."""
        how = self.decoding
        return token_probabilities(logits, how.temperature or 1.0, how.top_k, how.top_p)


def next_tokens(
    target: DecodingSession | StaticSession,
    draft: DecodingSession | StaticSession,
    whole: Sequence[list[int]],
    draws: RoundDraws,
) -> list[list[int]]:
    """Return the next tokens of each text: the accepted proposals, and one further token of the target model.

    `whole` has the tokens of each text so far, with its prompt. The target model has read all of them but the last, and
    the draft model at least all but the last two.
    """
    lengths = np.array(list(map(len, whole)))
    target.truncate(lengths - 1)
    draft.truncate(np.maximum(lengths - 2, 0))
    # The draft model reads two tokens, as it may not have read the last proposal; a text of one token has ended.
    read = torch.tensor([[0, *ids][-2:] for ids in whole], device=target.device)
    proposed, expected, last = list[Tensor](), list[Tensor](), read[:, 1:]
    for place in range(PROPOSALS):
        logits = draft.advance_many(read)[:, -1]
        if draws.decoding.is_sampling:
            expected.append(draws.probabilities(logits))
            proposed.append(draw(expected[-1], draws.uniform("propose", place)))
        else:
            proposed.append(logits.argmax(-1))
        read = proposed[-1][:, None]
    tokens = torch.stack(proposed, 1)  # (b, proposals)
    logits = target.advance_many(torch.cat([last, tokens], 1))
    if draws.decoding.is_sampling:
        accepted, chosen = verify_sampled(logits, tokens, torch.stack(expected, 1), draws)
    else:
        accepted, chosen = verify_greedy(logits, tokens)
    draft.to_host([tokens])  # checks for NaN
    (found,) = target.to_host([torch.cat([accepted[:, None], chosen], 1)])
    return [row[1 : 2 + row[0]] for row in found]


def verify_greedy(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many proposals are the most likely tokens of the target model, (b,), and the tokens to add.

    `logits` are those of the target model for each of the proposals and the token after them, (b, proposals + 1,
    vocabulary), and `tokens` the proposals, (b, proposals). The tokens to add are (b, proposals + 1): one more than the
    accepted ones; the others have no meaning.

    >>> accepted, chosen = verify_greedy(torch.eye(3)[None], torch.tensor([[0, 2]]))
    >>> accepted.tolist(), chosen.tolist()
    ([1], [[0, 1, 2]])
    """
    chosen = logits.argmax(-1)
    return (tokens == chosen[:, :-1]).long().cumprod(1).sum(1), chosen


def verify_sampled(logits: Tensor, tokens: Tensor, expected: Tensor, draws: RoundDraws) -> tuple[Tensor, Tensor]:
    """Accept or reject sampled proposals; return how many are accepted, (b,), and the tokens to add.

    `expected` are the probabilities of the draft model from which the proposals were sampled, (b, proposals,
    vocabulary). The other parameters and the result are those of `verify_greedy`.
    """
    proposals = tokens.shape[1]
    wanted = draws.probabilities(logits.flatten(0, 1)).view(logits.shape)
    chance = torch.from_numpy(draws.uniform("accept", np.arange(proposals))).to(tokens.device)
    p, q = (part.gather(2, tokens[:, :, None])[:, :, 0] for part in (wanted[:, :-1], expected))
    accepted = (chance * q < p).long().cumprod(1).sum(1)
    at = torch.arange(len(tokens), device=tokens.device), accepted
    # After the last proposal, the draft model has no probabilities, and the token is sampled from those of the target model.
    rest = (wanted - torch.cat([expected, torch.zeros_like(expected[:, :1])], 1))[at].clamp(min=0.0)
    rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, wanted[at])  # both are equal, up to rounding
    last = draw(rest, draws.uniform("replace"))
    padded = torch.cat([tokens, torch.zeros_like(tokens[:, :1])], 1)
    return accepted, padded.scatter(1, accepted[:, None], last[:, None])
