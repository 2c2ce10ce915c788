"""Rows of the table of speeds: relevance of many rows, of many generated tokens, and by a composite of rules."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import whence
from benchmarks.golden.answers import CHEAP
from benchmarks.measure import Line, made_of, milliseconds, plain, ratios, times
from benchmarks.speed_small import captum_job, mlp, small_cnn
from whence.subject.targets import Indices

ROUNDS, TOKENS, PROMPT = 9, 16, 48


def many_rows() -> list[Line]:
    """1,024 rows, without and with a look at the receipt of each."""
    model, x = mlp(), torch.randn(1024, 20)
    jobs: dict[str, Callable[[], Any]] = {"plain": lambda: plain(model, x), "LRP": captum_job("LRP", model, x)}
    for name in ("lrp", "attnlrp"):
        jobs[name] = partial(whence.explain, model, x, method=name, target=0)
        jobs[f"{name}, receipts"] = lambda name=name: jobs[name]().receipt["relevance"]
    taken = times(jobs, ROUNDS)
    found, cost = ratios(taken), milliseconds(taken)
    return [
        Line(
            f"{name}, MLP, 1,024 rows{', every receipt read' * read}, fb",
            found[key],
            found["LRP"] if name == "lrp" else None,
            15 if read else 8,
            f"{cost[key]:.1f} ms; {made_of(jobs[key], jobs['plain'])}",
        )
        for name in ("lrp", "attnlrp")
        for read in (False, True)
        for key in [f"{name}, receipts" if read else name]
    ]


def from_one_to_many() -> list[Line]:
    """The worst method that runs a fixed number of passes: its ratio for 1,024 rows over its ratio for one."""
    lines = []
    for title, model, shape in (("MLP", mlp(), (20,)), ("small CNN", small_cnn(), (3, 32, 32))):
        some = (1, 1024) if title == "MLP" else (1, 128)
        rises = {name: many / one for name in _one_pass() for one, many in [_rise(model, shape, name, some)]}
        worst = max(rises, key=lambda name: rises[name])
        title = f"ratio to fb for {some[1]:,} rows over that for one, {title}, the worst method"
        lines.append(Line(title, rises[worst], None, 1.0, worst))
    return lines


def _one_pass() -> list[str]:
    """Methods that propagate through each row a few times, whatever its size."""
    facts = {name: entry.facts for name, entry in whence.methods.items() if name not in CHEAP}
    others = {name for name, known in facts.items() if known.get("needs") or known.get("integral")}
    return [name for name, known in facts.items() if name not in others and known.get("propagates", True)]


EVALUATED = (
    "smoothgrad integrated_gradients expected_gradients conductance internal_influence leave_one_out occlusion shapley "
    "kernel_shap lime"
).split()


def from_one_to_many_evaluated() -> list[Line]:
    """The same for methods that evaluate each row many times, several copies of it in one pass.

    A pass of twenty copies of one row takes little longer than a pass of that row, which is no merit of the method; so
    these are measured by plain passes of as many rows, as many as the receipt counts.
    """
    lines = []
    for name in EVALUATED:
        one, many = (_rise(mlp(), (20,), name, (rows,), _as_many_rows)[0] for rows in (1, 1024))
        title = f"{name}, MLP, ratio to plain passes of as many rows for 1,024 rows over that for one"
        lines.append(Line(title, many / one, None, 1.0, f"{one:.1f}, {many:.1f} times these passes"))
    return lines


def _as_many_rows(model: nn.Module, x: Tensor, job: Callable[[], Any]) -> Callable[[], None]:
    """The passes that a method ran, forward or forward and backward, without the method."""
    receipt = job().receipt
    known = receipt.get("evaluations", receipt.get("gradient_evaluations"))
    each = torch.tensor([CHEAP["smoothgrad"]["samples"]] * len(x) if known is None else known)
    backward = receipt["backward_passes"]
    passes = backward or max(1, receipt["forward_passes"] - 1)  # beside that of the rows themselves
    whole = x.repeat_interleave(each, 0)
    parts = whole.chunk(passes)

    def run() -> None:
        for part in parts:
            if backward:
                plain(model, part)
            else:
                with torch.no_grad():
                    model(part)

    return run


def _rise(model: nn.Module, shape: tuple[int, ...], name: str, some: Sequence[int], floor: Any = None) -> list[float]:
    """The ratio to the floor, by default one plain forward+backward, for some numbers of rows."""
    found = []
    for rows in some:
        x = torch.randn(rows, *shape)
        ours = partial(whence.explain, model, x, method=name, target=0, progress=False, **CHEAP.get(name, {}))
        base = partial(plain, model, x) if floor is None else floor(model, x, ours)
        found.append(ratios(times({"plain": base, name: ours}, 5))[name])
    return found


def generated_tokens() -> list[Line]:
    """Every one of 16 tokens after a prompt, beside one forward and 16 backward passes of plain autograd."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_layer=6, n_embd=384, n_head=6, vocab_size=8000, bos_token_id=0, eos_token_id=0)
    model, length = GPT2LMHeadModel(config).eval(), PROMPT + TOKENS - 1
    ids = torch.randint(0, config.vocab_size, (1, length))
    written = torch.randint(0, config.vocab_size, (TOKENS,))
    index = torch.stack([torch.arange(PROMPT - 1, length), written], 1)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    embedded = model.get_input_embeddings()(ids).detach()
    aims = {"attnlrp": 1.1, "lrp": 2.2, "generic_attention": 1.1}
    jobs: dict[str, Callable[[], Any]] = {"plain": lambda: _token_by_token(model, embedded, index)}
    for name in aims:
        jobs[name] = partial(whence.explain, model, inputs, method=name, target=Indices(index[None]))
    taken = times(jobs, ROUNDS)
    found, cost = ratios(taken), milliseconds(taken)
    floor = f"1 forward + {TOKENS} backward passes take {cost['plain']:.0f} ms"
    return [
        Line(
            f"{name}, {TOKENS} generated tokens, of that floor",
            found[name],
            None,
            aim,
            f"{floor}; {made_of(jobs[name], jobs['plain'])}",
        )
        for name, aim in aims.items()
    ]


def _token_by_token(model: Any, embedded: Tensor, index: Tensor) -> None:
    leaf = embedded.clone().requires_grad_()
    logits = model(inputs_embeds=leaf).logits[0]
    for position, token in index.tolist():
        torch.autograd.grad(logits[position, token], leaf, retain_graph=True)


def vgg() -> nn.Sequential:
    """Six convolutions in three blocks, and two dense layers."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for channels, width in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, 128), nn.ReLU(), nn.Linear(128, 10)).eval()


def composite() -> list[Line]:
    model, x = vgg(), torch.randn(8, 3, 32, 32)
    name = "epsilon_alpha2_beta1"
    jobs: dict[str, Callable[[], Any]] = {
        "plain": lambda: plain(model, x),
        "whence": partial(whence.explain, model, x, method="lrp", composite=name, target=0),
    }
    peer = _zennit(model, x)
    if peer is not None:
        jobs["zennit"] = peer
    taken = times(jobs, ROUNDS)
    found = ratios(taken)
    extra = f"{milliseconds(taken)['whence']:.0f} ms; the peer is zennit"
    return [Line(f"lrp, {name}, VGG-like CNN, 8 rows, fb", found["whence"], found.get("zennit"), 5, extra)]


def _zennit(model: nn.Module, x: Tensor) -> Callable[[], Any] | None:
    """The same composite of zennit's; its package imports torchvision, but what is needed of it does not."""
    spec = importlib.util.find_spec("zennit")
    if spec is None:
        return None
    sys.modules.setdefault("zennit", importlib.util.module_from_spec(spec))
    composites, attribution = (importlib.import_module(f"zennit.{name}") for name in ("composites", "attribution"))
    wanted = torch.eye(10)[[0] * len(x)]

    def run() -> None:
        with attribution.Gradient(model=model, composite=composites.EpsilonAlpha2Beta1()) as attribute:
            attribute(x.clone().requires_grad_(), wanted)

    return run


ROWS = {
    "rows": many_rows,
    "rise": from_one_to_many,
    "rise_evaluated": from_one_to_many_evaluated,
    "tokens": generated_tokens,
    "composite": composite,
}
