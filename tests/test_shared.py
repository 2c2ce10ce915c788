"""Against tensors from the authors' own programs, and on real trained models (`make oracles`)."""

from __future__ import annotations

import csv
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whence
from tests.support.models import close, fits
from tests.support.slow import mostly_slow

pytestmark = pytest.mark.shared


# ---- BERT of the transformer-attribution authors ----


@pytest.fixture
def chefer_bert(oracle: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    from transformers import BertConfig, BertForSequenceClassification

    tensors, config = oracle("chefer_bert")
    model = BertForSequenceClassification(BertConfig(**config)).double().eval()
    weights = {key.removeprefix("weights."): value for key, value in tensors.items() if key.startswith("weights.")}
    model.load_state_dict(weights)
    return model, {key.removeprefix("f64."): value for key, value in tensors.items() if key.startswith("f64.")}


@pytest.mark.parametrize("tag", ["pred", "other"])
@pytest.mark.parametrize("case", ["full", "pad", "maskspecial"])
def test_gradients_at_hidden_states_are_the_authors(
    chefer_bert: tuple[nn.Module, dict[str, Tensor]], case: str, tag: str
) -> None:
    model, truth = chefer_bert
    inputs = {name: truth[f"{case}.{name}"] for name in ("input_ids", "attention_mask")}
    target = int(truth[f"{case}.target_{tag}"])
    layers = ["bert.embeddings", *(f"bert.encoder.layer.{i}" for i in range(3))]
    total = torch.zeros(1, inputs["input_ids"].shape[1]).double()
    for number, path in enumerate(layers):
        a = whence.explain(model, inputs, method="gradient", at=path, target=target)
        close(a.values, truth[f"{case}.{tag}.hidden_grad.L{number}"], 1e-6)
        close(a.output_value, truth[f"{case}.logits"].flatten()[target : target + 1], 1e-6)
        total += whence.explain(model, inputs, method="input_x_gradient", at=path, target=target).values.sum(-1)
    close(total.flatten(), truth[f"{case}.{tag}.cat"].flatten(), 1e-6)  # CAT is their sum over layers


# ---- a trained BERT on real posts ----


@pytest.mark.parametrize(
    "method",
    mostly_slow(
        [m for m, entry in whence.methods.items() if fits(m, "bert_sdpa") and not entry.facts.get("permutes")],
        ["gradient", "lrp", "rollout"],
    ),
)
@pytest.mark.filterwarnings("ignore:.*hidden dimension of each token.*:whence.WhenceWarning")
def test_real_posts_alone_and_in_a_padded_batch(data: Any, method: str) -> None:
    from transformers import AutoTokenizer, BertForSequenceClassification

    folder = data("bert-tiny-toxicity")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = BertForSequenceClassification.from_pretrained(folder).double()
    with open(data("toxic_spans_semeval2021") / "tsd_trial.csv", encoding="utf-8") as file:
        posts = [row["text"] for row in csv.DictReader(file)][:6]
    batch = dict(tokenizer(posts, padding=True, truncation=True, max_length=256, return_tensors="pt"))
    params = {"samples": 4} if method in ("smoothgrad", "expected_gradients") else {}
    whole = whence.explain(model, batch, method=method, **params)
    for row, post in enumerate(posts):
        alone = whence.explain(
            model,
            dict(tokenizer(post, truncation=True, max_length=256, return_tensors="pt")),
            method=method,
            **params,
        )
        close(whole[row].raw, alone.raw, 1e-10)
        close(whole[row].output_value, alone.output_value, 1e-10)


@pytest.mark.parametrize(
    "method",
    mostly_slow(
        ["input_x_gradient", "integrated_gradients", "lrp", "attcat", "transformer_attribution"], ["input_x_gradient"]
    ),
)
def test_posts_as_text_are_the_bare_model_on_their_ids(data: Any, method: str) -> None:
    clf = whence.load(data("bert-tiny-toxicity"), long="truncate")
    clf.model.double()
    with open(data("toxic_spans_semeval2021") / "tsd_test.csv", encoding="utf-8") as file:
        posts = [row["text"] for row in csv.DictReader(file)][:40]
    a = whence.explain(clf, posts, method=method, target="toxic")
    for row, post in enumerate(posts):
        ids = dict(clf.tokenizer(post, truncation=True, max_length=512, return_tensors="pt"))
        bare = whence.explain(clf.model, ids, method=method, target=1)
        close(a[row].values, bare.values, 1e-9 if method != "integrated_gradients" else 1e-6)
        (units,), (spans,) = a[row].units, a[row].spans
        assert units == clf.tokenizer.convert_ids_to_tokens(ids["input_ids"][0].tolist())
        assert all(post[s:e].strip() == post[s:e] for s, e in spans)


# ---- a trained residual network ----


class Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int, modules: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.stride, self.widen = stride, (outside - inside) // 2
        self.first, self.last = (nn.ReLU(), nn.ReLU()) if modules else (F.relu, F.relu)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.first(self.bn1(self.conv1(x)))))
        short = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.widen, self.widen))
        return self.last(y + short)


class ResNet20(nn.Module):
    """The published weights' architecture; ReLUs as functions or as modules."""

    def __init__(self, modules: bool) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.act = nn.ReLU() if modules else F.relu
        widths = [16, 16, 32, 64]
        for stage in (1, 2, 3):
            blocks = [
                Block(
                    widths[stage - 1] if i == 0 else widths[stage],
                    widths[stage],
                    2 if i == 0 and stage > 1 else 1,
                    modules,
                )
                for i in range(3)
            ]
            self.add_module(f"layer{stage}", nn.Sequential(*blocks))
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))


@pytest.mark.parametrize(("method", "peer"), [("guided_backprop", "GuidedBackprop"), ("deconvnet", "Deconvolution")])
def test_a_trained_resnet_with_functional_relus_gets_captums_values_of_its_rewrite(
    data: Any, method: str, peer: str
) -> None:
    import captum.attr

    stored = torch.load(data("cifar10_resnets") / "resnet20-12fca82f.th", weights_only=True, map_location="cpu")
    weights = {key.removeprefix("module."): value for key, value in stored["state_dict"].items()}
    functional, rewritten = ResNet20(False), ResNet20(True)
    for model in (functional, rewritten):
        model.load_state_dict(weights)
        model.double().eval()
    file = np.load(data("cifar10_test1000") / "cifar10_test1000_jpeg.npz")
    mean, std = (torch.tensor(v).double()[:, None, None] for v in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    pick = slice(None, None, 50)
    x = (torch.tensor(file["x"][pick]).permute(0, 3, 1, 2).double() / 255 - mean) / std
    labels = torch.tensor(file["y"][pick]).long()
    a = whence.explain(functional, x, method=method)
    assert float((a.target == labels).double().mean()) >= 0.7  # these are the trained weights
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        truth = getattr(captum.attr, peer)(rewritten).attribute(x.clone(), target=a.target).detach()
    close(a.values, truth, 1e-10)
