"""Rows of the table of speeds: every token of a language model's answer, and long prompts layer by layer.

The unit fkb is one plain forward pass and a backward pass for each of the k answer tokens, with logits at the answer
alone. inseq cannot be imported beside transformers 5 here (it needs jaxtyping and more, which are not installed): its
row is a loop that does what it does, a forward pass with all logits and a backward pass for each token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

import whence
from benchmarks.measure import Line, in_a_child, peak, ratios, times
from whence.subject.targets import Indices

PROMPT, ANSWER, VOCABULARY, WIDTH = 512, 32, 32_000, 512
LONG = 2048
ROUNDS = 5
FEW_TOKENS = 4  # of more, each pass is timed once
MEMORY = {6: 0.65, 12: 0.4}  # layers → most memory, relative to a pass in one piece
TIME = 1.6  # and most time
Inputs = dict[str, Any]


def decoder(layers: int, tokens: int, answer: int) -> tuple[Any, Inputs, Any, Tensor]:
    """A Llama with random weights, a prompt with its answer, the answer's tokens as targets, and their ids."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=WIDTH, intermediate_size=4 * WIDTH, num_hidden_layers=layers, num_attention_heads=8,
        vocab_size=VOCABULARY, max_position_embeddings=4096,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    whole = torch.randint(0, VOCABULARY, (1, tokens + answer))
    ids, wanted = whole[:, :-1], whole[0, tokens:]
    index = torch.stack([torch.arange(answer), wanted], 1)[None]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "logits_to_keep": answer, "use_cache": False}
    return model, inputs, Indices(index), wanted


def one_forward(model: Any, inputs: Inputs, wanted: Tensor) -> Tensor:
    """The gradient of each token's logit, (k, n, hidden): one forward pass, and a backward pass for each."""
    x = model.get_input_embeddings()(inputs["input_ids"]).detach().requires_grad_()
    rest = {name: value for name, value in inputs.items() if name != "input_ids"}
    logits = model(inputs_embeds=x, **rest).logits[0, torch.arange(len(wanted)), wanted]
    return torch.stack([torch.autograd.grad(logit, x, retain_graph=True)[0][0] for logit in logits])


def one_by_one(model: Any, inputs: Inputs, wanted: Tensor) -> Tensor:
    """The same with a forward pass of its own for each token, over the text before it and with all of its logits."""
    embedded = model.get_input_embeddings()(inputs["input_ids"]).detach()
    found = torch.zeros(len(wanted), *embedded.shape[1:])
    for number, token in enumerate(wanted.tolist()):
        x = embedded[:, : embedded.shape[1] - len(wanted) + 1 + number].clone().requires_grad_()
        (m,) = torch.autograd.grad(model(inputs_embeds=x, use_cache=False).logits[0, -1, token], x)
        found[number, : x.shape[1]] = m[0]
    return found


def answer(names: Sequence[str] = ("gradient", "attnlrp", "generic_attention"), rounds: int = ROUNDS) -> list[Line]:
    """32 answer tokens over a prompt of 512, six layers of width 512, a vocabulary of 32,000."""
    model, inputs, target, wanted = decoder(6, PROMPT, ANSWER)
    jobs: dict[str, Callable[[], Any]] = {"plain": partial(one_forward, model, inputs, wanted)}
    for name in names:
        jobs[name] = partial(whence.explain, model, inputs, method=name, target=target)
    if "gradient" in names:
        jobs["loop"] = partial(one_by_one, model, inputs, wanted)
        ours, theirs = jobs["gradient"]().raw[0], jobs["loop"]()
        assert torch.allclose(ours, theirs, atol=1e-4 * float(theirs.abs().max())), "not the same gradients"
    taken = times(jobs, rounds)
    cost = ratios(taken)
    size = f"{ANSWER} tokens over {PROMPT}"
    lines = [Line(f"{name}, {size}, fkb", cost[name], None, 1.2) for name in names]
    if "gradient" in names:
        beside = ratios(taken, to="loop")["gradient"]
        lines.append(Line(f"gradient, {size}, of a loop of {ANSWER} passes, as inseq runs them", beside, None, 0.6))
    return lines


def layerwise(depths: Sequence[int] = (6, 12), answers: Sequence[int] = (4, 32), rounds: int = ROUNDS) -> list[Line]:
    """AttnLRP over 2,048 tokens: memory and time of a pass layer by layer, relative to one in one piece.

    Of a long answer, whose passes take minutes, each is measured once, in a process of its own: by what that grows.
    """
    lines = []
    for layers in depths:
        for count in answers:
            model, inputs, target, _ = decoder(layers, LONG, count)
            whole = partial(whence.explain, model, inputs, method="attnlrp", target=target)
            jobs: dict[str, Callable[[], Any]] = {"plain": whole, "cut": partial(whole, memory=1)}
            measured = traced if count <= FEW_TOKENS else in_a_child
            once = {name: measured(lambda job=job: job().raw) for name, job in jobs.items()}
            held = {name: memory for name, (_, memory, _) in once.items()}
            assert torch.allclose(once["cut"][0], once["plain"][0], atol=1e-5), "not the same relevance"
            taken = times(jobs, rounds) if count <= FEW_TOKENS else {name: [own] for name, (_, _, own) in once.items()}
            told = ", ".join(f"{held[name] / 1e6:.0f} MB" for name in ("cut", "plain"))
            seconds = ", ".join(f"{median(taken[name]):.1f} s" for name in ("cut", "plain"))
            size = f"attnlrp layer by layer, {layers} layers, {count} tokens over {LONG:,}"
            lines.append(Line(f"{size}, memory", held["cut"] / held["plain"], None, MEMORY[layers], told))
            lines.append(
                Line(f"{size}, time", ratios(taken)["cut"], None, TIME, f"{seconds} in {len(taken['cut'])} runs")
            )
    return lines


def traced(job: Callable[[], Tensor]) -> tuple[Tensor, int, float]:
    """What a job gives, the most bytes of tensors that it has at a time, and its CPU seconds."""
    found: list[Tensor] = []
    start = time.process_time()
    memory = peak(lambda: found.append(job()))
    return found[0], memory, time.process_time() - start


ROWS: dict[str, Callable[[], list[Line]]] = {"answer": answer} | {
    f"layerwise_{layers}_{count}": partial(layerwise, (layers,), (count,)) for layers in (6, 12) for count in (4, 32)
}
