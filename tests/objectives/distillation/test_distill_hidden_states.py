"""Tests of hidden-state distillation: layer maps, matching losses, and a teacher whose weights stay fixed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pretune import PretuneError
from pretune.nn.attention.attention_weights import attention_weights
from pretune.nn.attention.query_key_layout import self_layout
from pretune.objectives import JointObjective, parse_objective
from pretune.objectives.distillation.distill_hidden_states import DistillHidden, map_layers, parse_matches
from pretune.objectives.distillation.distill_task_logits import DistillLogits, TeacherTargets
from pretune.packed import Batch, pack_lists, pack_targets
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Packing, Sequences, collate
from tests.support.tiny_models import random_model
from tests.support.tiny_models import small_tokenizer as tokenizer


def sequences() -> Sequences:
    rows = [[5, 9, 12, 40, 7], [3, 8], [11, 30, 31]]
    return Sequences(
        np.array([i for row in rows for i in row]), np.array([5, 2, 3]), np.arange(3), {"special": np.zeros(10, bool)}
    )


def student_and_teacher(match: str, width: int = 16, family: str = "bert") -> tuple[DistillHidden, Any, Any, Batch]:
    words = tokenizer("wordpiece")
    teacher = random_model(family, words, "mlm", num_hidden_layers=4)
    student = random_model(family, words, "mlm", num_hidden_layers=2, hidden_size=width)
    for number, parameter in enumerate(student.root.parameters()):
        torch.manual_seed(number)
        torch.nn.init.normal_(parameter, std=0.3)
        parameter.requires_grad_(True)
    imitate = DistillHidden(teacher.root, parse_matches(match, 2, 4))
    batch = collate(imitate.corrupt(sequences(), words, EpochRandom(0)))
    return imitate, student.backbone, imitate.head(student.backbone), batch


@pytest.mark.not_fast
@pytest.mark.parametrize("match", ["hidden(skip)", "states(last)", "attention(1:2/2:4)", "embedding", "cosine"])
@pytest.mark.parametrize("width", [16, 8])
def test_training_reduces_the_matching_loss_and_leaves_the_teacher_unchanged(match: str, width: int) -> None:
    imitate, student, head, batch = student_and_teacher(match, width)
    (term,) = imitate.max_targets(Packing(tokens=64, length=8))
    parameters = [*student.parameters(), *head.parameters()]
    assert bool(list(head.parameters())) == (width == 8 and "attention" not in match)
    before = [p.clone() for p in imitate.teacher.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.01)
    losses = []
    for _ in range(30):
        loss = imitate.loss(head, student, batch).over(batch.counts)
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.6 * losses[0] and batch.counts[term] == (3 if "hidden" in match else 10)
    assert all(torch.equal(a, b) for a, b in zip(before, imitate.teacher.parameters(), strict=True))


def test_hidden_loss_equals_the_patient_kd_formula() -> None:
    imitate, student, head, batch = student_and_teacher("hidden(1:2)")
    states = [backbone(*batch.packed, keep="all").layers for backbone in (student, imitate.teacher.backbone)]
    firsts = batch.packed[0].offsets[:-1].long()
    ours, theirs = (x / x.norm(dim=-1, keepdim=True) for x in (states[0][1][firsts], states[1][2][firsts]))
    wanted = (ours - theirs).square().mean(-1).sum()
    torch.testing.assert_close(imitate.loss(head, student, batch).sums["match_hidden"], wanted)


def test_loss_is_zero_when_the_student_is_the_teacher() -> None:
    imitate, _, _, batch = student_and_teacher("hidden(2:2)+states(2:2)+attention(2:2)+embedding+cosine")
    backbone: Any = imitate.teacher.backbone
    loss = imitate.loss(imitate.head(backbone), backbone, batch)
    assert len(loss.sums) == 5 and all(abs(float(x)) < 1e-4 for x in loss.sums.values())


@pytest.mark.parametrize("family", ["bert", "modernbert", "gpt2"])
def test_attention_weights_reproduce_the_attention_output(family: str) -> None:
    model = random_model(
        family, tokenizer("byte-level-bpe"), "lm" if family == "gpt2" else "mlm", num_attention_heads=1, n_head=1
    )
    packed = pack_lists([[5, 9, 12, 40, 7], [3, 8], [11, 30, 31]])
    x = torch.randn(10, 16)
    layer, layout = model.backbone.layers[0], self_layout(packed)
    rows = attention_weights(layer, x, layout)
    torch.testing.assert_close(rows.sum(-1), torch.ones(10))
    attention = layer.attention
    from pretune.nn.attention.multi_head import AttentionContext

    inner = attention.norm(x) if family != "bert" else x
    values = attention.part.qkv(inner).view(10, 3, -1)[:, 2]
    starts = packed.offsets[:-1].long()[self_layout(packed).queries.sequence.long()]
    mixed = torch.stack([
        sum((rows[i, j] * values[int(starts[i]) + j] for j in range(5) if rows[i, j] > 0), torch.zeros(16)) for i in range(10)
    ])  # fmt: skip
    torch.testing.assert_close(
        attention.part.output(mixed), attention.part(inner, AttentionContext(layout)), rtol=1e-4, atol=1e-5
    )


def test_layer_maps_are_parsed_and_checked() -> None:
    assert map_layers("skip", 6, 12) == ((1, 2), (2, 4), (3, 6), (4, 8), (5, 10))
    assert map_layers("last", 6, 12) == ((1, 7), (2, 8), (3, 9), (4, 10), (5, 11))
    assert map_layers("1:3/2:4", 2, 4) == ((1, 3), (2, 4))
    for text, words in (
        ("1:9", "no pair 1:9; choose student layers 1 to 2 and teacher layers 1 to 4"),
        ("upper", "choose last, skip"),
    ):
        with pytest.raises(PretuneError, match=words):
            map_layers(text, 2, 4)
    with pytest.raises(PretuneError, match="the teacher has only 4"):
        map_layers("skip", 6, 4)
    with pytest.raises(PretuneError, match="did you mean 'hidden'"):
        parse_matches("hiden(skip)", 2, 4)
    with pytest.raises(PretuneError, match="takes no layer map"):
        parse_matches("cosine(skip)", 2, 4)


def test_one_student_forward_pass_serves_all_joint_objectives(monkeypatch: pytest.MonkeyPatch) -> None:
    imitate, student, head, batch = student_and_teacher("states(skip)")
    words = tokenizer("wordpiece")
    mlm = parse_objective("mlm(mask_rate=0.5)").objectives[0]
    joint = JointObjective(((1.0, mlm), (2.0, imitate)))  # type: ignore[arg-type]
    batch = collate(joint.corrupt(sequences(), words, EpochRandom(0)))
    calls = []
    forward = student.forward
    monkeypatch.setattr(student, "forward", lambda *a, **k: calls.append(1) or forward(*a, **k))
    loss = joint.loss(torch.nn.ModuleDict({"mlm": student.vocabulary_head(), "imitate": head}), student, batch)
    assert len(calls) == 1 and loss.sums.keys() == {"mlm", "match_states"} and loss.weights["match_states"] == 2.0


def test_soft_and_hard_targets_give_the_expected_losses() -> None:
    task = parse_objective("classify", labels=("no", "yes")).objectives[0]
    shares = np.array([[1.0, 0.0], [0.0, 1.0], [0.3, 0.7]])
    taught = np.array([[0.6, 0.4], [0.1, 0.9]])
    logits = torch.tensor([[0.2, -0.1], [0.5, 1.5], [0.0, 0.3]])

    class FixedLogits:
        def outputs(self, *_: Any) -> torch.Tensor:
            return logits

    def total(**options: Any) -> float:
        soft = DistillLogits(task, TeacherTargets(shares, 2, **options))  # type: ignore[arg-type]
        object.__setattr__(soft, "task", type("T", (), {"name": "classify", "outputs": FixedLogits().outputs})())
        batch = Batch((), {"classify": pack_targets(np.arange(3), np.arange(3))})
        return float(soft.loss(None, None, batch).sums["classify"])  # type: ignore[arg-type]

    p, logs = torch.from_numpy(shares).float(), logits.log_softmax(-1)
    entropy = float((p[2] * p[2].log()).sum())
    assert total() == pytest.approx(float(-(p * logs).sum()) + entropy, abs=1e-5)
    heat = 2.0
    wanted = (torch.from_numpy(np.concatenate([taught, shares[2:]])).float().log() / heat).log_softmax(-1)
    each = (wanted.exp() * (wanted - (logits / heat).log_softmax(-1))).sum(-1) * heat**2
    hard = -(p * logs).sum(-1)
    assert total(temperature=heat, taught=taught, alpha=0.25) == pytest.approx(
        float(0.75 * hard[:2].sum() + 0.25 * each[:2].sum() + each[2]), abs=1e-5
    )
    # A constant added to all logits of a row does not change their squared distance.
    before = total(taught=taught, alpha=1.0, match="mse")
    logits += 3.0
    assert total(taught=taught, alpha=1.0, match="mse") == pytest.approx(before, abs=1e-4)
