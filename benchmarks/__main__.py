"""`python -m benchmarks`: what each method costs, as a ratio to one plain forward+backward of the same model.

Everything runs in one process and takes turns, so that a busy machine slows all of it alike; a ratio is the median over
rounds of (this one's time / plain's time in the same round). Captum stands beside where it has the method.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import whence
from benchmarks import attention, deeplift, evaluation, gaps, integrals, relevance
from benchmarks.measure import measure, peak, plain
from whence.adapters.tensors import adapt
from whence.engine.scope import scope
from whence.subject import Measured, Record
from whence.subject.targets import read_target
from whence.views.tables import table

GOALS = {("bert", "gradient"): 1.15, ("bert", "guided_backprop"): 1.5}
PEERS = {
    "gradient": "Saliency",
    "input_x_gradient": "InputXGradient",
    "guided_backprop": "GuidedBackprop",
    "deconvnet": "Deconvolution",
}


def small_cnn() -> tuple[nn.Module, Tensor, nn.Module, Tensor]:
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 64, 10),
    ).eval()  # fmt: skip
    x = torch.randn(16, 3, 32, 32)
    return model, x, model, x


class FromEmbeddings(nn.Module):
    """BERT as a function of its word embeddings: what a user of plain autograd or Captum writes by hand."""

    def __init__(self, bert: nn.Module, mask: Tensor) -> None:
        super().__init__()
        self.bert, self.mask = bert, mask

    def forward(self, e: Tensor) -> Any:
        mask = self.mask.repeat(len(e) // len(self.mask), 1)
        return self.bert(inputs_embeds=e, attention_mask=mask).logits


def bert(
    hidden: int = 256, layers: int = 4, heads: int = 4, inner: int = 1024
) -> tuple[nn.Module, dict[str, Tensor], nn.Module, Tensor]:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
        vocab_size=8000,
    )
    model = BertForSequenceClassification(config).eval()
    ids = torch.randint(0, 8000, (8, 128))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    embedded = model.get_input_embeddings()(ids).detach()
    return model, inputs, FromEmbeddings(model, inputs["attention_mask"]), embedded


def peer(name: str, model: nn.Module, x: Tensor) -> Callable[[], Any] | None:
    import captum.attr

    if name == "smoothgrad":
        tunnel = captum.attr.NoiseTunnel(captum.attr.Saliency(model))
        return lambda: tunnel.attribute(
            x.clone(), nt_type="smoothgrad", nt_samples=25, stdevs=0.15, target=0, abs=False
        )
    if name not in PEERS:
        return None
    method = getattr(captum.attr, PEERS[name])(model)
    return lambda: method.attribute(x.clone().requires_grad_(), target=0)


def report(title: str, make: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    model, inputs, bare, x = make()
    jobs: dict[str, Callable[[], Any]] = {"plain": lambda: plain(bare, x)}
    passes = {}
    quick = [
        name
        for name, entry in whence.methods.items()
        if not entry.facts.get("complete", entry.facts.get("reference")) and not entry.facts.get("needs")
    ]
    for name in quick:
        jobs[name] = lambda name=name: whence.explain(model, inputs, method=name, target=0, channels="sum_abs")
        receipt = jobs[name]().receipt
        passes[name] = f"{receipt['forward_passes']}+{receipt['backward_passes']}"
        other = peer(name, bare, x)
        if other is not None:
            jobs[f"captum {name}"] = other
    found = measure(jobs)
    rows = []
    for name in quick:
        beside = found.get(f"captum {name}")
        goal = GOALS.get((title, name))
        verdict = "" if goal is None else f"at most {goal}: {'met' if found[name] <= goal else 'MISSED'}"
        rows.append([name, f"{found[name]:.2f}", "–" if beside is None else f"{beside:.2f}", passes[name], verdict])
    print(f"\n{title}: cost relative to one plain forward+backward")
    print(table(["method", "whence", "captum", "passes", "goal"], rows), flush=True)


# ---- the engine itself ----


def eq1(call: whence.Call, r: Tensor) -> list[Tensor | None]:
    """A relevance rule: R_j = Σ_i x_j ∂L_i/∂x_j R_i / L_i."""
    share = call.vjp(r / (call.y + 1e-9 * call.y.sign() + 1e-12))
    return [None if m is None else x * m for x, m in zip(call.x, share, strict=True)]


RELEVANCE = {"*": eq1, "view": whence.derivative}


def engine() -> None:
    """The empty mode on BERT-base's shape, and a second propagation of one forward pass."""
    _, _, bare, x = bert_base()
    subject = replace(adapt(bare, x, method="bench"), target=read_target(0, len(x)), seeds=(0,) * len(x))

    def under_the_mode() -> None:
        with scope(bare):
            replace(subject, measured=Measured(), record=Record()).run().pull()

    found = measure({"plain": lambda: plain(bare, x), "mode": under_the_mode}, rounds=5)
    met = "met" if found["mode"] <= 1.05 else "MISSED"
    print(
        f"\nBERT-base shape (12 × 768, 8 × 128 tokens): the empty mode costs {found['mode']:.3f}; at most 1.05: {met}"
    )

    _, _, bare, x = bert()
    subject = replace(adapt(bare, x, method="bench"), target=read_target(0, len(x)), seeds=(0,) * len(x))

    def job(*pulls: Any, passes: int = 1) -> Callable[[], None]:
        def run() -> None:
            with scope(bare):
                for n in range(passes):
                    done = replace(subject, measured=Measured(), record=Record()).run(RELEVANCE)
                    mine = pulls if passes == 1 else pulls[n : n + 1]
                    for i, rules in enumerate(mine):
                        done.pull(rules, again=i + 1 < len(mine))

        return run

    jobs = {
        "plain": lambda: plain(bare, x),
        "relevance": job(None),
        "gradient and relevance, one pass": job({}, None),
        "gradient and relevance, two passes": job({}, None, passes=2),
    }
    found = measure(jobs)
    floor = peak(jobs["plain"])
    rows = [[name, f"{found[name]:.2f}", f"{peak(made) / floor:.2f}"] for name, made in jobs.items()]
    print("\nbert: one forward pass, several propagations, relative to plain forward+backward")
    print(table(["what", "time", "peak memory"], rows), flush=True)


def bert_base() -> Any:
    return bert(hidden=768, layers=12, heads=12, inner=3072)


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    engine()
    report("small cnn", small_cnn)
    report("bert", bert)
    attention.main()
    relevance.main()
    gaps.main()
    deeplift.main([])
    integrals.main()
    evaluation.main([])


if __name__ == "__main__":
    main()
