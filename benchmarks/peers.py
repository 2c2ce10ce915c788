"""The other libraries of docs/from on the models of its pages, beside Whence: how far apart are the answers?

`python -m benchmarks.peers [NAME …]`, with `pip install -c constraints.txt shap quantus inseq` and
`pip install --no-deps zennit lxt tabulate`. What is not installed, or cannot be imported, is said. `--docs` writes the
lines into the pages.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import whence

PAGES = Path(__file__).resolve().parents[1] / "docs" / "from"
Lines = Iterator[tuple[str, float]]  # what was compared, and the largest difference relative to the largest value


def apart(theirs: Any, ours: Any) -> float:
    """The largest difference, relative to the largest value."""
    theirs, ours = (torch.as_tensor(np.asarray(v), dtype=torch.double) for v in (theirs, ours))
    return float((theirs - ours).abs().max() / ours.abs().max())


def shap() -> Lines:
    import shap

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 2))
    background, x = torch.randn(20, 5), torch.randn(3, 5)
    row, one = background[:1].numpy(), {"target": 1, "baseline": background[0]}

    def f(a: Any) -> Any:
        return net(torch.as_tensor(a, dtype=torch.float32)).detach().numpy()

    def own(method: str, **params: Any) -> Tensor:
        return whence.explain(net, x, method=method, **params).values

    deep = shap.DeepExplainer(net, background).shap_values(x)
    yield "DeepExplainer, deepshap", apart(deep[..., 1], own("deepshap", target=1, baseline=background))
    gradients = shap.GradientExplainer(net, background).shap_values(x, nsamples=4000, rseed=0)
    sampled = own("expected_gradients", target=1, baseline=list(background), samples=4000)
    yield "GradientExplainer, expected_gradients (4,000 samples each)", apart(gradients[..., 1], sampled)
    kernel = shap.KernelExplainer(f, row).shap_values(x.numpy(), nsamples=512, silent=True)
    yield "KernelExplainer, kernel_shap", apart(np.asarray(kernel)[..., 1], own("kernel_shap", samples=512, **one))
    exact = shap.ExactExplainer(f, row)(x.numpy(), silent=True).values
    yield "ExactExplainer, shapley", apart(exact[..., 1], own("shapley", **one))
    orders = shap.PermutationExplainer(f, row)(x.numpy(), silent=True).values
    yield "PermutationExplainer, shapley", apart(orders[..., 1], own("shapley", **one))


def quantus() -> Lines:
    real, hidden = importlib.util.find_spec, ("zennit", "torchvision", "tensorflow")  # it imports all that it finds
    importlib.util.find_spec = lambda name, *rest: None if name in hidden else real(name, *rest)
    try:
        import quantus
    finally:
        importlib.util.find_spec = real
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
    x, maps = torch.rand(8, 1, 8, 8), torch.rand(8, 1, 8, 8)
    y = model(x).argmax(1)
    batch = {"model": model, "x_batch": x.numpy(), "y_batch": y.numpy(), "a_batch": maps.numpy(), "device": "cpu"}
    scores: dict[str, Any] = {
        "PixelFlipping, deletion": quantus.PixelFlipping(
            features_in_step=1, perturb_baseline=0.0, normalise=False, abs=False, disable_warnings=True
        )(**batch, softmax=True),
        "Sparseness, sparseness": quantus.Sparseness(disable_warnings=True)(**batch),
        "Complexity, complexity": quantus.Complexity(disable_warnings=True)(**batch),
    }
    board = whence.evaluate(
        model, x, methods={"theirs": lambda *_: maps}, controls=False, metrics={"deletion": {"steps": 64},
        "sparseness": {}, "complexity": {}},
    )  # fmt: skip
    for name, theirs in scores.items():
        found = list(board.results["theirs", name.split(", ")[1]].values())
        curves = [result.curve[1][1:] if result.curve is not None else result.value for result in found]
        ours = curves if name.startswith("Pixel") else float(np.mean([result.value for result in found]))
        yield name, apart(theirs if name.startswith("Pixel") else float(np.mean(theirs)), ours)


def inseq() -> Lines:
    import inseq

    folder = Path(whence.__file__).parent / "zoo" / "weights" / "language"
    lm, text = whence.load("zoo:language"), "The film is"
    written = lm.complete(text, tokens=3)
    peer = inseq.load_model(str(folder), "integrated_gradients")
    options = {"max_new_tokens": 3, "do_sample": False}
    out = peer.attribute(text, generation_args=options, n_steps=300, show_progress=False, attributed_fn="logit")
    theirs = out.sequence_attributions[0].target_attributions.sum(-1)[:6].nan_to_num().T
    start = torch.full((1, 6), peer.tokenizer.unk_token_id)  # inseq's baseline; 0 embeddings are Whence's own
    ours = whence.explain(lm, text, method="integrated_gradients", target=written, baseline=start, tolerance=1e-4)
    yield "integrated_gradients of logits, 300 steps and tolerance 1e-4", apart(theirs, ours.values[0])


def lxt() -> Lines:
    from lxt.efficient import monkey_patch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.llama import modeling_llama

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=60, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
    )
    model, ids = LlamaForCausalLM(config).eval(), torch.tensor([[5, 9, 2, 31, 7]])
    best = lambda out: out.logits[:, -1].max(1).values  # noqa: E731
    ours = whence.explain(model, {"input_ids": ids}, method="attnlrp", target=best).values
    monkey_patch(modeling_llama)
    embedded = model.get_input_embeddings()(ids).detach().requires_grad_()
    model(inputs_embeds=embedded).logits[0, -1].max().backward()
    assert embedded.grad is not None
    yield "efficient AttnLRP, attnlrp", apart((embedded * embedded.grad).sum(-1).detach(), ours)


def zennit() -> Lines:
    spec = importlib.util.find_spec("zennit")
    if spec is None:
        raise ModuleNotFoundError("No module named 'zennit'")
    sys.modules.setdefault("zennit", importlib.util.module_from_spec(spec))  # its __init__ wants torchvision
    attribution, composites = (importlib.import_module(f"zennit.{name}") for name in ("attribution", "composites"))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)).eval()
    x = torch.rand(2, 1, 8, 8)
    for name in ("EpsilonPlus", "EpsilonPlusFlat", "EpsilonAlpha2Beta1", "EpsilonAlpha2Beta1Flat"):
        own = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
        with attribution.Gradient(model=model, composite=getattr(composites, name)()) as attributor:
            _, theirs = attributor(x, torch.eye(3)[[1, 1]])
        yield (
            f"{name}, {own}",
            apart(theirs.detach(), whence.explain(model, x, method="lrp", composite=own, target=1).values),
        )


PEERS: dict[str, Callable[[], Lines]] = {each.__name__: each for each in (shap, quantus, inseq, lxt, zennit)}


def report(name: str) -> str:
    """The lines of one library; why there are none, where it is not installed or fails."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lines = [f"{what}: {difference:.0e}" for what, difference in PEERS[name]()]
        return "\n".join([f"{name} {version(name)}: largest difference, relative to the largest value", *lines])
    except ModuleNotFoundError as error:
        return f"{name}: not installed ({error})"
    except ImportError as error:
        why = str(error).split(" (")[0]  # without the place on this machine
        return f"{name} {version(name)} cannot be imported beside transformers {version('transformers')}:\n{why}"


def written(page: str, told: str) -> str:
    """A page with these lines between its marks."""
    begin, end = "<!-- peers: begin -->\n", "<!-- peers: end -->"
    before, rest = page.split(begin)
    return f"{before}{begin}```text\n{told}\n```\n{end}{rest.split(end)[1]}"


def main(arguments: list[str]) -> None:
    for name in [name for name in arguments if name != "--docs"] or list(PEERS):
        told = report(name)
        print(told, flush=True)
        page = PAGES / f"{name}.md"
        if "--docs" in arguments and "not installed" not in told:
            page.write_text(written(page.read_text(encoding="utf-8"), told), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
