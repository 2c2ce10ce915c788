"""Tiny models in float64, each with inputs: what every contract is checked on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whence

ROWS, CLASSES = 3, 4


@dataclass(frozen=True)
class Case:
    """A model, a batch for it, and how closely it can agree with itself (some HF models compute in float32)."""

    name: str
    build: Callable[[], tuple[nn.Module, Any]]
    rtol: float = 1e-10

    def make(self) -> tuple[nn.Module, Any]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            model, inputs = self.build()
        return model.eval(), inputs


CASES: dict[str, Case] = {}


def case(name: str, rtol: float = 1e-10) -> Callable[[Any], Any]:
    def add(build: Any) -> Any:
        CASES[name] = Case(name, build, rtol)
        return build

    return add


class Mlp(nn.Module):
    """Three dense layers; `act` is the spelling of ReLU."""

    def __init__(self, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 10), nn.Linear(10, 8), nn.Linear(8, CLASSES)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.act(self.b(self.act(self.a(x)))))


@case("mlp_module")
def _() -> Any:
    layers = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 8), nn.ReLU(inplace=True), nn.Linear(8, CLASSES))
    return layers.double(), torch.randn(ROWS, 6).double()


@case("mlp_functional")
def _() -> Any:
    return Mlp(F.relu).double(), torch.randn(ROWS, 6).double()


@case("mlp_reused")
def _() -> Any:
    return Mlp(nn.ReLU()).double(), torch.randn(ROWS, 6).double()


class ResidualCnn(nn.Module):
    """Convolution, batch norm, an overlapping max-pool, a residual block with an in-place sum."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.left, self.right = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.inner, self.relu = nn.BatchNorm2d(6), nn.ReLU(inplace=True)
        self.out = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.norm(self.conv(x))))
        y = self.inner(self.right(F.relu(self.left(x))))
        y += x
        return self.out(self.relu(y).mean((2, 3)))


@case("residual_cnn")
def _() -> Any:
    model = ResidualCnn()
    for norm in (model.norm, model.inner):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    return model.double(), torch.randn(ROWS, 2, 9, 9).double()


class Smooth(nn.Module):
    """GELU, SiLU, LayerNorm and a softmax in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(F.gelu(self.a(x)))
        gate = torch.softmax(self.b(x), -1)
        return self.c(F.silu(x) * gate)


@case("smooth")
def _() -> Any:
    return Smooth().double(), torch.randn(ROWS, 6).double()


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(5, 6, num_layers=2, bidirectional=True, batch_first=True)
        self.out = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0][:, -1])


@case("lstm")
def _() -> Any:
    return Lstm().double(), torch.randn(ROWS, 4, 5).double()


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.out = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.attention(x, x, x, need_weights=False)[0].mean(1))


@case("multihead")
def _() -> Any:
    return Attentive().double(), torch.randn(ROWS, 5, 8).double()


class Graph(nn.Module):
    """Two graph convolutions by a product with a fixed, normalised adjacency."""

    def __init__(self) -> None:
        super().__init__()
        ring = torch.eye(5) + torch.eye(5).roll(1, 0) + torch.eye(5).roll(-1, 0)
        self.register_buffer("adjacency", ring / 3)
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.adjacency @ self.a(x))
        return (self.adjacency @ self.b(x)).sum(1)


@case("graph")
def _() -> Any:
    return Graph().double(), torch.randn(ROWS, 5, 4).double()


# ---- Hugging Face, from small configurations ----


def _text(last_real_pads: bool = True) -> dict[str, Tensor]:
    ids = torch.randint(3, 60, (ROWS, 7))
    mask = torch.ones_like(ids)
    mask[1, 5:], mask[2, 4:] = 0, 0
    return {"input_ids": ids * mask, "attention_mask": mask}  # 0 is the padding id


def _hf(config: Any, model: Any, attention: str) -> nn.Module:
    config._attn_implementation = attention
    built = model(config).double()
    with torch.no_grad():
        for p in built.parameters():
            p.normal_(std=0.15) if p.dim() > 1 else p.add_(torch.randn_like(p) * 0.1)
    return built


def _add_hf() -> None:
    import transformers as hf

    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    text = {"vocab_size": 60, "num_labels": CLASSES, "pad_token_id": 0}

    def bert(attention: str) -> Any:
        config = hf.BertConfig(**small, **text, max_position_embeddings=16)
        return _hf(config, hf.BertForSequenceClassification, attention), _text()

    def gpt2(attention: str) -> Any:
        config = hf.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=16, bos_token_id=1, eos_token_id=2, **text)
        return _hf(config, hf.GPT2ForSequenceClassification, attention), _text()

    def llama(attention: str) -> Any:
        config = hf.LlamaConfig(**small, num_key_value_heads=1, bos_token_id=1, eos_token_id=2, **text)
        return _hf(config, hf.LlamaForSequenceClassification, attention), _text()

    def vit(attention: str) -> Any:
        config = hf.ViTConfig(**small, image_size=8, patch_size=4, num_channels=2, num_labels=CLASSES)
        images = {"pixel_values": torch.randn(ROWS, 2, 8, 8).double()}
        return _hf(config, hf.ViTForImageClassification, attention), images

    # Llama's norms and rotary embeddings, and ViT's eager softmax, are computed in float32 whatever the dtype
    single = {"llama_sdpa", "llama_eager", "vit_eager"}
    for name, build in (("bert", bert), ("gpt2", gpt2), ("llama", llama), ("vit", vit)):
        for attention in ("sdpa", "eager"):
            rtol = 2e-6 if f"{name}_{attention}" in single else 1e-10
            case(f"{name}_{attention}", rtol)(lambda build=build, attention=attention: build(attention))


_add_hf()

FEW = ("mlp_functional", "residual_cnn", "lstm", "bert_sdpa")  # in `make test` for every method


def first_tensor(inputs: Any) -> Tensor:
    return inputs if isinstance(inputs, Tensor) else next(iter(inputs.values()))


def row_of(inputs: Any, row: int) -> Any:
    """One row alone, without padding."""
    if isinstance(inputs, Tensor):
        return inputs[row : row + 1]
    alone = {key: value[row : row + 1] for key, value in inputs.items()}
    if "attention_mask" in alone:
        real = int(alone["attention_mask"].sum())
        alone = {key: value[:, :real] for key, value in alone.items()}
    return alone


def close(a: Tensor, b: Tensor, rtol: float) -> None:
    """max|a − b| ≤ rtol · max|b|."""
    assert a.shape == b.shape, (a.shape, b.shape)
    apart = float((a - b).abs().max()) if a.numel() else 0.0
    assert apart <= rtol * float(b.abs().max()), f"apart by {apart:.3g}, largest {float(b.abs().max()):.3g}"


HAVE = {  # beginnings of the cases that have what some methods need, the usual one first
    "attention": ("multihead", "bert", "gpt2", "llama", "vit"),
    "maps": ("residual_cnn", "vit"),
}


def reads_attention(method: str) -> bool:
    return whence.methods[method].facts.get("needs") == "attention"


def fits(method: str, name: str) -> bool:
    """Whether a case has what the method needs."""
    return name.startswith(HAVE.get(whence.methods[method].facts.get("needs"), ""))


def fitting(method: str, name: str) -> Case:
    """The case, or one that has what the method needs."""
    return CASES[name] if fits(method, name) else CASES[HAVE[whence.methods[method].facts["needs"]][0]]
