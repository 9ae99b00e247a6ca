"""Tests of a curriculum of objectives: stages of the budget with objectives of their own, such as ERNIE's masking stages."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import torch

import pretune as pt
from pretune import PretuneError
from pretune.models.create_model import make_model
from pretune.models.loading import load_model
from pretune.models.presets import find_preset
from pretune.objectives import Data, parse_objective
from pretune.objectives.pretraining.mlm import MLM
from pretune.packed import Batch
from pretune.text.packing.sequences import Packing
from pretune.training.data_streams import DataStreams, make_streams
from pretune.training.jobs.objective_schedule import check_heads, parse_objective_schedule, with_phrases
from pretune.training.jobs.pretraining_settings import resolve_pretraining
from tests.support.paths import ROOT
from tests.support.tiny_training_cases import TEMPLATE, store

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 256,
}


def streams(schedule: list[tuple[float, str]], **options: Any) -> DataStreams:
    data = Data(store().tokenizer, TEMPLATE, store=store(), documents=np.arange(store().documents))
    mixture = parse_objective("mlm|lm")
    stages = parse_objective_schedule(schedule, mixture)
    return make_streams(
        mixture, data, tokens=512, packing=Packing(64, 16), seed=0, objective_schedule=stages, **options
    )


def objectives_at(made: DataStreams, progress: float) -> set[str]:
    return {str(made.streams[pack.stream].joint) for pack in made.next_step(progress)}


def test_each_stage_trains_its_objectives_on_text_in_another_order() -> None:
    made = streams([(0.25, "mlm"), (0.5, "mlm|lm"), (1.0, "mlm(unit=word)")])
    assert objectives_at(made, 0.0) == objectives_at(made, 0.24) == {"mlm"}
    assert objectives_at(made, 0.25) == {"mlm", "lm"}
    last = made.next_step(0.5)
    units = {part.unit for pack in last for part in made.streams[pack.stream].joint.objectives}  # type: ignore[attr-defined]
    assert units == {"word"}
    assert made.next_step(1.0)[0].stream == last[0].stream  # the last stage continues
    first_batches = [made.streams[number].batch(*made.streams[number].next(), 0.0) for number in (0, 3)]
    assert not torch.equal(first_batches[0].packed[0].ids, first_batches[1].packed[0].ids)


def test_a_length_schedule_divides_a_stage_without_starting_it_again() -> None:
    made = streams([(0.5, "mlm"), (1.0, "lm")], length_schedule=[(0.75, 16), (1.0, 32)])
    assert [stage.until for stage in made.stages] == [0.5, 0.75, 1.0]
    assert len(made.streams) == 3
    early, middle, late = (made.next_step(share)[0] for share in (0.1, 0.6, 0.9))
    lengths = [made.streams[pack.stream].packing.length for pack in (early, middle, late)]
    assert lengths == [16, 16, 32] and [str(made.streams[pack.stream].joint) for pack in (middle, late)] == ["lm", "lm"]
    assert len(streams([(0.5, "mlm"), (1.0, "mlm(unit=word)")], length_schedule=[(1.0, 16)]).streams) == 2


def test_wrong_schedules_are_errors_of_one_line() -> None:
    mixture = parse_objective("mlm+nsp")
    for schedule, message in {
        ((0.5, "mlm"),): "must increase and end at 1",
        ((0.5, "mlm"), (0.5, "mlm"), (1.0, "mlm")): "must increase and end at 1",
        (
            (0.5, "mlm"),
            (1.0, "lm"),
        ): "'lm' has the objective lm, which the objective of the run, mlm\\+nsp, does not have",
    }.items():
        with pytest.raises(PretuneError, match=message):
            parse_objective_schedule(schedule, mixture)
    with pytest.raises(PretuneError, match=r"batch\.objective_schedule=.*each entry must be a fraction of the budget"):
        pt.Batching(objective_schedule=((2.0, "mlm"),))
    with pytest.raises(PretuneError, match="a stateful objective cannot be one of several stages"):
        streams([(0.5, "lm"), (1.0, "lm(stateful=true)")])
    model = make_model("bert-tiny", 64)
    model.add_heads(mixture.objectives)
    check_heads(parse_objective_schedule([(0.5, "mlm"), (1.0, "mlm(unit=word)+nsp")], mixture), model)
    with pytest.raises(
        PretuneError, match="the objective 'mlm' needs a head of another shape in mlm than in the objective of the run"
    ):
        check_heads(parse_objective_schedule([(1.0, "mlm(span_boundary=true)")], mixture), model)


def test_an_objective_of_the_user_replaces_the_schedule_of_the_preset() -> None:
    def schedule(**options: Any) -> Any:
        return resolve_pretraining("ernie-tiny", ["text"], "run", options, 0, "cpu").batch.objective_schedule

    assert [objective for _, objective in schedule()] == ["mlm", "mlm(unit=phrase)", "mlm(unit=word)"]
    assert schedule(objective="mlm+nsp") is None
    assert schedule(objective="mlm", batch=pt.Batching(objective_schedule=((1.0, "mlm"),))) == ((1.0, "mlm"),)


def test_phrases_without_a_list_become_those_of_the_text_or_words(tmp_path: Path) -> None:
    (tmp_path / "phrases.txt").write_text("New York\n", encoding="utf-8")
    mixture = parse_objective("mlm(unit=phrase)|mlm(unit=phrase)+nsp")
    for phrases, unit in ((None, "word"), (str(tmp_path / "phrases.txt"), "phrase")):
        made = [part for part in with_phrases(mixture, phrases).objectives if isinstance(part, MLM)]
        assert {(part.unit, part.phrases) for part in made} == {(unit, phrases)}


# -- ERNIE ----------------------------------------------------------------------------------------------------------


@cache
def material() -> Path:
    """Return a folder with a preset, a store of text with annotated names and frequent phrases, and a file of dialogues."""
    folder, chance = Path(mkdtemp()), random.Random(0)
    words = ["cat", "dog", "fox", "owl", "pig", "rat", "bee", "cow", "elk", "hen"]
    rows = []
    for _ in range(240):
        text = " ".join([*chance.choices(words, k=6), "New York", *chance.choices(words, k=4), "Ada Lovelace Byron."])
        start = text.index("Ada")
        rows.append({"text": f"{text} {' '.join(chance.choices(words, k=5))}.", "names": [[start, start + 18]]})
    (folder / "text.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    chats = [{"turns": [" ".join(chance.choices(words, k=5)) for _ in range(4)]} for _ in range(40)]
    (folder / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)), encoding="utf-8")
    tokenizer = pt.train_tokenizer(str(folder / "text.jsonl"), kind="wordpiece", vocab_size=120, lowercase=True)
    pt.prepare(str(folder / "text.jsonl"), tokenizer, folder / "store", span_field="names", processes=1)
    recipe = {
        "like": "ernie-1.0-dialogue", "config": SMALL, "optimizer": {"lr": 1e-3},
        "batch": {"tokens": 512, "max_length": 32, "microbatch_tokens": 128},
        "monitor": {"log_every": 1, "save_every": 4, "held_out_fraction": 0.0}, "budget": {"steps": 18},
    }  # fmt: skip
    (folder / "small.yaml").write_text(json.dumps(recipe), encoding="utf-8")
    return folder


def data_files() -> list[str]:
    return [str(material() / "store"), str(material() / "chats.jsonl")]


def learn(out: Path, **options: Any) -> pt.Run:
    return pt.pretrain(str(material() / "small.yaml"), data_files(), out=out, device="cpu", **options)


class Masked(pt.Callback):
    """Record the batches of running text of each stage, and the number of batches of dialogues and of all."""

    def __init__(self) -> None:
        self.texts: dict[int, list[Batch]] = {}
        self.dialogues = self.packs = 0

    def on_start(self, training: Any) -> None:
        self.streams = training.streams

    def before_step(self, step: Any) -> None:
        for pack in step.packs:
            self.packs += 1
            if len(self.streams.streams[pack.stream].joint.parts) > 1:
                self.dialogues += 1
            else:  # a stage has two streams
                self.texts.setdefault(pack.stream // 2, []).append(self.streams.batch(pack, step.progress))


@pytest.mark.not_fast
def test_ernie_masks_tokens_then_phrases_then_entities_and_learns_from_dialogues(tmp_path: Path) -> None:
    watching = Masked()
    run = learn(tmp_path / "run", callbacks=[watching])
    phrases = (run.folder / "phrases.txt").read_text().split("\n")
    assert any("york" in phrase for phrase in phrases)
    tokenizer = load_model(run).require_tokenizer()

    def split_units(stage: int, text: str) -> tuple[int, int]:
        """Return how often only some of the tokens of a phrase were targets, and how often all were."""
        ids = tokenizer.encode(text)
        some = whole = 0
        for batch in watching.texts[stage]:
            targets = dict(zip(batch.targets["mlm"].at.tolist(), batch.targets["mlm"].target.tolist(), strict=True))
            original = [targets.get(place, value) for place, value in enumerate(batch.packed[0].ids.tolist())]
            for start in range(len(original) - len(ids) + 1):
                if original[start : start + len(ids)] == ids:
                    hit = sum(start + step in targets for step in range(len(ids)))
                    some, whole = some + (0 < hit < len(ids)), whole + (hit == len(ids))
        return some, whole

    assert split_units(0, "new york")[0] > 0  # tokens
    assert split_units(1, "new york")[0] == 0 < split_units(1, "new york")[1]  # phrases
    assert split_units(2, "new york")[0] > 0  # words and annotated entities
    assert split_units(2, "ada lovelace byron")[0] == 0
    assert 0.2 < watching.dialogues / watching.packs < 0.45
    assert {"mlm", "dlm"} <= {name for line in run.metrics() for name in line}
    assert set(load_model(run, parse_objective("mlm+dlm")).root.heads) == {"mlm", "dlm"}


KILLED = """
import os, sys
sys.path[:0] = [{here!r}]
import torch
torch.set_num_threads(1)
import pretune as pt
class Kill(pt.Callback):
    def after_step(self, step):
        if step.number == {at}:
            os.kill(os.getpid(), 9)
pt.pretrain({preset!r}, {data!r}, out={out!r}, device="cpu", callbacks=[Kill()])
"""


@pytest.mark.end_to_end
def test_a_run_that_is_killed_in_the_second_stage_resumes_bit_identically(tmp_path: Path) -> None:
    script = KILLED.format(
        here=str(ROOT), at=10, preset=str(material() / "small.yaml"), data=data_files(), out=str(tmp_path / "killed")
    )
    killing = subprocess.run([sys.executable, "-c", script], stderr=subprocess.DEVNULL, check=False)
    assert killing.returncode == -signal.SIGKILL
    learn(tmp_path / "killed", resume=True)
    learn(tmp_path / "whole")
    whole, killed = (load_model(tmp_path / out).root.state_dict() for out in ("whole", "killed"))
    for name, tensor in whole.items():
        assert torch.equal(tensor, killed[name]), name
    steps = [line["step"] for line in pt.Run(tmp_path / "killed").metrics()]
    assert steps == list(range(1, 19))


def test_the_presets_declare_the_published_stages() -> None:
    for name in ("ernie-1.0-base", "ernie-1.0-dialogue", "ernie-tiny"):
        preset = find_preset(name)
        stages = [(until, text) for until, text in preset["batch"]["objective_schedule"]]
        parsed = parse_objective_schedule(stages, parse_objective(preset["objective"]))
        units = [next(p.unit for p in stage.objectives if isinstance(p, MLM)) for _, stage in parsed]
        assert units == ["token", "phrase", "word"]
        dialogues = {"dlm" in {part.name for part in stage.objectives} for _, stage in parsed}
        assert dialogues == {name == "ernie-1.0-dialogue"}
