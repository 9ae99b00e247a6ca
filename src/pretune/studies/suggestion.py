"""Suggest a recipe for a corpus and a labeled task, from short trial runs of several candidates (successive halving).

In successive halving (Jamieson and Talwalkar, 2016, arXiv:1502.07943), the better half of the candidates goes on to the next round.
All rounds have the same budget, so that each candidate that is left is trained longer. Each round is a study in its own folder, and
can be resumed.

    OUT/candidates.json    the candidates, and why they were chosen
    OUT/round-N            the study of each round
    OUT/pretrain.yaml      the recipe of the winner for the full run; missing if the winner is a model as it is
    OUT/finetune.yaml      the recipe to fine-tune it with afterwards
    OUT/summary.md         what was tried, and how sure the result is
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pretune.models.bundled import bundled_names
from pretune.runtime.atomic_io import write_bytes, write_json
from pretune.runtime.errors import PretuneError
from pretune.runtime.progress import log_info
from pretune.runtime.recipe import Values, write_recipe
from pretune.studies.arm_jobs import pretraining_job
from pretune.studies.execution import StudyExecution, read_results
from pretune.studies.planning import plan_study
from pretune.studies.results import StudyResults
from pretune.studies.study_file import Arm, parse_study, run_budget
from pretune.studies.study_report import markdown_table, write_study_report
from pretune.studies.verdict import mean_and_spread
from pretune.text.corpus.files import find_files

CANDIDATES, SUMMARY, PRETRAIN, FINETUNE = "candidates.json", "summary.md", "pretrain.yaml", "finetune.yaml"
BYTES_PER_TOKEN = 4.5  # of English text
ENOUGH_TO_PRETRAIN = 100_000  # tokens of a corpus below which new models are not tried
ENOUGH_SECONDS = 600.0  # budget below which only tiny new models are tried
FINAL_SEEDS = 2  # of the last round; the others have one
TRAINING_SHARE = 0.6  # of the budget for pretraining; the rest is for the evaluations
FULL_RUN = 10  # times the budget of all pilots
FEW_STEPS = 50  # of a pilot, below which it says next to nothing
ENGLISH = "en"


@dataclass(frozen=True)
class Candidate:
    """A candidate recipe for a suggestion: its settings, as those of an arm of a study, and why it was chosen."""

    name: str
    arm: Values
    why: str


@dataclass(frozen=True)
class SuggestionJob:
    """A request for a recipe that suits a corpus and a labeled task, within a budget in seconds for all trial runs."""

    data: Sequence[str]
    task: Values  # the settings of an evaluation of the kind task
    seconds: float
    out: Path
    language: str = ENGLISH
    device: str | None = None
    devices: int = 1

    def run(self) -> Suggestion:
        """Try the candidate recipes in rounds; write the winner's recipe and a summary, and return the suggestion."""
        corpus = sum(file.stat().st_size for path in self.data for file in find_files(path)) / BYTES_PER_TOKEN
        found = candidates(corpus, self.seconds, self.language)
        write_json(self.out / CANDIDATES, [{"name": one.name, "arm": one.arm, "why": one.why} for one in found])
        suggestion = Suggestion(self, corpus, found)
        left = list(found)
        for number, (count, training, evaluation) in enumerate(rounds(len(found), self.seconds, self.devices), 1):
            left = left[:count]
            last = count <= 2
            content = self.study(left, training, evaluation, FINAL_SEEDS if last else 1)
            log_info(f"round {number}: {', '.join(one.name for one in left)}, {training:.0f} s of training each")
            folder = self.out / f"round-{number}"
            plan = plan_study(parse_study(content, f"round {number}"), self.device)
            outcomes = StudyExecution(plan, content, folder, self.device, self.devices).run()
            results = read_results(plan.study, outcomes, folder)
            write_study_report(results, folder)
            ranked = results.ranking(results.metrics[0]) if results.metrics else []
            if not ranked:
                raise PretuneError(
                    f"{folder}: all candidates failed; correct the cause of the first error: {outcomes[0].error}"
                )
            left = [one for name in ranked for one in left if one.name == name]
            suggestion.rounds.append(results)
        suggestion.write(left[0])
        return suggestion

    def study(self, left: Sequence[Candidate], training: float, evaluation: float, seeds: int) -> Values:
        """Return the study of one round, as the content of a study file.

        `left` are the candidates that are left; each gets `training` seconds of training and `evaluation` seconds of
        fine-tuning.
        """
        base = {"pretrain": {"data": list(self.data), "language": self.language}}
        return {
            "question": "Which recipe suits this text and this task best?",
            "budget": {"seconds": training},
            "seeds": seeds,
            "base": base,
            "arms": {one.name: one.arm for one in left},
            "evaluations": {"task": {**self.task, "kind": "task", "budget": {"seconds": evaluation}}},
        }


def candidates(tokens: float, seconds: float, language: str) -> list[Candidate]:
    """Return the candidate recipes for a corpus of `tokens` tokens and a budget of `seconds` seconds.

    >>> [one.name for one in candidates(5e4, 1800.0, "en")]
    ['bundled model', 'adapted', 'adapted slowly']
    """
    found = []
    size = f"{tokens:,.0f} tokens"
    if language == ENGLISH:
        bundled = bundled_names()[0]
        adapted: Values = {"model": bundled, "pretrain": {"objective": "mlm"}}
        slowly = {"model": bundled, "pretrain": {"objective": "mlm", "optimizer": {"lr": 1e-4}}}
        found = [
            Candidate(
                "bundled model", {**adapted, "control": True}, "costs nothing; what pretraining on your text must beat"
            ),
            Candidate("adapted", adapted, "knows English already, and learns the language of your text"),
            Candidate("adapted slowly", slowly, "the same with a third of the learning rate, which forgets less"),
        ]
    if tokens >= ENOUGH_TO_PRETRAIN or not found:
        tiny = seconds < ENOUGH_SECONDS
        bert, electra, gpt = (
            ("bert-tiny", "electra-tiny", "gpt2-tiny") if tiny else ("bert-mini", "electra-tiny", "gpt2-mini")
        )
        reason = f"a new model with a vocabulary of its own; your text has about {size}"
        found += [
            Candidate("new with mlm", {"model": bert, "pretrain": {"objective": "mlm"}}, reason),
            Candidate(
                "new with rtd",
                {"model": electra, "pretrain": {"objective": "rtd"}},
                f"{reason}, and every token is a target",
            ),
            Candidate(
                "new with lm", {"model": gpt, "pretrain": {"objective": "lm"}}, f"{reason}, and it can generate text"
            ),
        ]
    return found


def rounds(count: int, seconds: float, devices: int = 1) -> list[tuple[int, float, float]]:
    """Return the rounds of successive halving for `count` candidates and a budget of `seconds` seconds.

    Each round is its number of candidates, and the seconds of training and of evaluation for each candidate.

    >>> [(count, round(training)) for count, training, _ in rounds(6, 600.0)]
    [(6, 20), (3, 40), (2, 30)]
    """
    counts = [count]
    while counts[-1] > 2:
        counts.append(max(2, math.ceil(counts[-1] / 2)))
    runs = [number * (FINAL_SEEDS if number <= 2 else 1) for number in counts]
    evaluation = devices * (1 - TRAINING_SHARE) * seconds / sum(runs)
    each = devices * TRAINING_SHARE * seconds / len(counts)
    return [(number, each / own, evaluation) for number, own in zip(counts, runs, strict=True)]


@dataclass
class Suggestion:
    """A suggested recipe, with the candidates and the results of the rounds in which it was found."""

    job: SuggestionJob
    tokens: float
    candidates: Sequence[Candidate]
    rounds: list[StudyResults] = field(default_factory=list)
    winner: Candidate | None = None
    commands: list[str] = field(default_factory=list)

    def write(self, winner: Candidate) -> None:
        """Write the recipes and the summary, given the winner."""
        self.winner, out = winner, self.job.out
        arm = Arm(
            winner.name,
            winner.arm["model"],
            {"data": list(self.job.data), "language": self.job.language, **winner.arm["pretrain"]},
        )
        model = arm.model
        if not winner.arm.get("control"):
            full = pretraining_job(
                arm, run_budget("seconds", FULL_RUN * self.job.seconds), 0, out, device=self.job.device
            )
            write_bytes(out / PRETRAIN, write_recipe(full.recipe()).encode())
            model = str(out / "full")
            self.commands.append(f"pretune pretrain --recipe {out / PRETRAIN} --out {model}")
        task = {name: value for name, value in self.job.task.items() if name != "kind"}
        write_bytes(out / FINETUNE, write_recipe({"model": model, **task}).encode())
        self.commands.append(f"pretune finetune --recipe {out / FINETUNE} --out {out / 'task'}")
        write_bytes(out / SUMMARY, self.summary().encode())

    def explain(self) -> list[str]:
        """Return sentences about the winner: why it was chosen, how sure the choice is, and what the full run costs."""
        assert self.winner is not None
        last = self.rounds[-1]
        metric = last.metrics[0]
        found = [
            f"The suggestion is {self.winner.name}: {self.winner.why}. Its pilot scored {mean_and_spread(last.scores(self.winner.name, metric))} on {metric}."
        ]
        found += last.findings(metric)
        if (trivial := last.trivial_scores().get(metric)) is not None:
            found.append(f"A model that always predicts the most frequent label would score {trivial:.1f}.")
        if self.winner.arm.get("control"):
            found.append(
                "No pretraining on your text was better within this budget; fine-tune the model as it is, or try a larger budget."
            )
        else:
            found.append(
                f"The recipe of the full run trains {FULL_RUN} times as long as all pilots together ({FULL_RUN * self.job.seconds / 60:,.0f} minutes); "
                "change that in the file, under budget."
            )
        steps = [x.cost["step"] for results in self.rounds for x in results.outcomes if "step" in x.cost]
        if steps and min(steps) < FEW_STEPS:
            found.append(
                f"Warning: the shortest pilot had only {min(steps):.0f} training step{'s' if min(steps) > 1 else ''}, too few to compare "
                f"recipes; give a larger --budget than {self.job.seconds:.0f}s."
            )
        found.append("A pilot is short: what leads early does not always lead in the end.")
        return found

    def tables(self) -> list[list[dict[str, Any]]]:
        """Return one table per round, with the scores of its candidates."""
        return [
            [
                {
                    "candidate": name,
                    one.metrics[0]: mean_and_spread(one.scores(name, one.metrics[0])),
                    "training, s": f"{one.budget:.0f}",
                }
                for name in one.names
            ]
            for one in self.rounds
        ]

    def summary(self) -> str:
        """Return the summary of the suggestion in Markdown."""
        why = [{"candidate": one.name, "model": one.arm["model"], "why": one.why} for one in self.candidates]
        lines = ["# Suggested recipe", "", *self.explain(), "", "```sh", *self.commands, "```", ""]
        lines += ["## Candidates", "", f"The corpus has about {self.tokens:,.0f} tokens.", "", markdown_table(why), ""]
        for number, table in enumerate(self.tables(), 1):
            lines += [f"## Round {number}", "", markdown_table(table), ""]
        return "\n".join(lines)
