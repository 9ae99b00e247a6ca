"""A model as an ONNX graph: padded rows of ids in, states out, and what its head makes of them.

Inside, tokens are packed as everywhere: padding is cut out first and is there again only within attention, so that ragged
batches cost what their tokens cost.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pretune.atomic import write_bytes, write_json
from pretune.backbones.encoder_decoder import EncoderDecoder
from pretune.backbones.onnx import GRAPH, IDS, LOGITS, MASK, SEGMENTS, STATES, OnnxBackbone, open_graph
from pretune.errors import PretuneError
from pretune.model import CONFIG, HEAD, Model
from pretune.nn.attention import GlobalAttention
from pretune.objectives import Once, Task
from pretune.objectives.named import kind_of
from pretune.packed import Batch, Packed

OPSET = 17
LONGEST = 512  # where a model has no limit of its own
CLOSE = 1e-3  # how far a graph may be from the model it was made of
# Tasks for which the first token is not the one with global attention (Longformer).
OTHER_GLOBALS = ("tag", "answer", "choose")


def has_global_tokens(root: nn.Module) -> bool:
    """Return whether a model has tokens with global attention, which a column names (Longformer)."""
    return any(isinstance(module, GlobalAttention) for module in root.modules())


class Padded(nn.Module):
    """A model that takes rows as other programs have them: ids, where there is one, and segments."""

    def __init__(self, model: Model, task: Task | None) -> None:
        super().__init__()
        self.root, self.task = model.root, task
        self.longest = model.backbone.longest or LONGEST
        self.starts = has_global_tokens(model.root)

    def forward(self, ids: Tensor, mask: Tensor, segments: Tensor) -> tuple[Tensor, ...]:
        """(b, L) each → (b, L, width), and logits where there is a head for them."""
        real = mask > 0
        rows = real.flatten().nonzero().squeeze(1)  # (n,)
        ends = mask.sum(1).cumsum(0)
        places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids).flatten()[rows]
        columns = {"segment": segments.flatten()[rows]}
        if self.starts:  # the first token stands for all (Longformer)
            columns["global"] = (places == 0).long()
        packed = Packed(
            ids=ids.flatten()[rows],
            offsets=torch.cat([ends.new_zeros(1), ends]).int(),
            positions=places,
            longest=self.longest,
            columns=columns,
            rows=real,
        )
        backbone = Once(self.root.backbone)
        states = backbone(packed).last

        def back(
            x: Tensor,
        ) -> Tensor:  # (n, d) → (b, L, d); looking up takes a fraction of the time of putting in place
            token = (real.flatten().long().cumsum(0) - 1).clamp(min=0)
            return x.index_select(0, token).view(ids.shape[0], ids.shape[1], x.shape[-1]) * real[:, :, None]

        if self.task is None:
            return (back(states),)
        logits = self.task.outputs(self.root.heads[self.task.name], backbone, Batch((packed,)))  # type: ignore[arg-type]
        return back(states), back(logits) if self.task.each == "token" else logits


def write_graph(model: Model, file: Path, task: Task | None = None) -> None:
    """Write a model as a graph, and see that it gives the same for rows of other numbers and lengths."""
    if isinstance(model.backbone, OnnxBackbone):
        raise PretuneError(f"{model.backbone.path}: is a graph already")
    if model.shape.linear:
        raise PretuneError(
            "matrices of 8 bits by torch have no graph; export the model they were made of, and quantize that"
        )
    if isinstance(model.backbone, EncoderDecoder):
        raise PretuneError(f"{model.family.name}: reads one text and writes another; only single stacks become a graph")
    if task is not None and kind_of(task) in OTHER_GLOBALS and has_global_tokens(model.root):
        raise PretuneError(
            f"{model.family.name}: which tokens see all others depends on the texts for {kind_of(task)}, and a graph is not "
            "told; use the model with pretune, or export it --to hf"
        )
    try:
        import onnx  # noqa: F401
    except ImportError as error:
        raise PretuneError("onnx is not installed; install it with: pip install 'pretune[export]'") from error
    module = Padded(model, task).cpu().eval()
    inputs, outputs = [IDS, MASK, SEGMENTS], [STATES, LOGITS] if task is not None else [STATES]
    axes: dict[str, dict[int, str]] = {name: {0: "rows", 1: "length"} for name in (*inputs, STATES)}
    axes[LOGITS] = {0: "rows", 1: "length"} if task is not None and task.each == "token" else {0: "rows"}
    sizes = model.config.vocab_size, model.backbone.longest or LONGEST
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(".draft")
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the tracer, about numbers that are the same for all batches
            torch.onnx.export(
                module,
                rows_of([5, 3], *sizes),
                str(draft),
                input_names=inputs,
                output_names=outputs,
                dynamic_axes=axes,
                opset_version=OPSET,
                dynamo=False,
            )
            far = distance(module, draft, rows_of([2, 7, 4, 1], *sizes), outputs)
        if not far < CLOSE:
            raise PretuneError(
                f"{model.family.name}: as a graph it gives other states (by {far:.2g}); it is not written"
            )
        write_bytes(file, draft.read_bytes())
    except (RuntimeError, TypeError, torch.onnx.errors.OnnxExporterError) as error:
        reason = str(error).strip().splitlines()[0]
        raise PretuneError(f"{model.family.name}: its attention cannot be written as a graph ({reason})") from error
    finally:
        draft.unlink(missing_ok=True)


def rows_of(lengths: list[int], vocabulary: int, longest: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, mask and segments of some made-up rows."""
    lengths = [min(length, longest) for length in lengths]
    steps = torch.arange(max(lengths))
    mask = (steps < torch.tensor(lengths)[:, None]).long()
    ids = (steps * 7 + torch.arange(len(lengths))[:, None] * 13 + 5) % vocabulary
    return ids * mask, mask, torch.zeros_like(mask)


def distance(module: nn.Module, file: Path, rows: tuple[Tensor, ...], outputs: list[str]) -> float:
    """How far what a graph gives for some rows is from what the model gives, at most."""
    session = open_graph(file)
    names = {entry.name for entry in session.get_inputs()}
    feed = {name: x.numpy() for name, x in zip((IDS, MASK, SEGMENTS), rows, strict=True) if name in names}
    found = session.run(outputs, feed)
    return max(float((torch.from_numpy(a) - b).abs().max()) for a, b in zip(found, module(*rows), strict=True))


def export_graph(model: Model, folder: Path, task: Task | None = None) -> dict[str, Any]:
    """A folder with a graph, its tokenizer, and what pretune must know to use it like any model."""
    write_graph(model, folder / GRAPH, task)
    finish_folder(model, folder)
    return {"folder": str(folder), "files": sorted(file.name for file in folder.iterdir())}


def finish_folder(model: Model, folder: Path) -> None:
    """All that belongs to a graph: configuration, heads, tokenizer."""
    from safetensors.torch import save

    heads = {name: tensor for name, tensor in model.state().items() if name.startswith("heads.")}
    needed = [name for name in heads if name.split(".")[1] not in ("mlm", "lm")]  # those are nothing without vectors
    if needed:
        write_bytes(folder / HEAD, save({name: heads[name] for name in needed}))
    config = model.described()
    config["pretune"]["engine"] = "onnxruntime"
    write_json(folder / CONFIG, config)
    if model.tokenizer is not None:
        model.tokenizer.save(folder, model.family.template, model.backbone.longest)
