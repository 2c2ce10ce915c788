"""Small models in float64, each with its inputs and the options of its explanations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import whence

ROWS, CLASSES = 2, 3
TEXTS = ["a moving and funny film", "too long"]
FEW = ("gradient", "deeplift", "lrp", "transformer_attribution", "leave_one_out")


@dataclass(frozen=True)
class Case:
    """A model, its inputs, and what `explain` is told."""

    model: Any
    inputs: Any
    options: Mapping[str, Any] = field(default_factory=dict)
    methods: tuple[str, ...] = ()  # all of them, if none is named


CASES: dict[str, Callable[[], Case]] = {}


def case(build: Callable[[], Case]) -> Callable[[], Case]:
    """Add a case by its function's name; its random numbers are always the same."""

    def made() -> Case:
        torch.manual_seed(11)
        built = build()
        if isinstance(built.model, nn.Module):
            built.model.double().eval()
        return built

    CASES[build.__name__] = made
    return made


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def dense() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, CLASSES))


@case
def mlp() -> Case:
    return Case(dense(), normal(ROWS, 5), {"target": 1})


@case
def mlp_at_a_module() -> Case:
    return Case(dense(), normal(ROWS, 5), {"target": 1, "at": "1"})


@case
def mlp_several_targets() -> Case:
    return Case(dense(), normal(ROWS, 5), {"target": torch.tensor([[0, 1], [2, 0]])})


@case
def cnn() -> Case:
    norm = nn.BatchNorm2d(4)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), norm, nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(36, CLASSES),
    )  # fmt: skip
    return Case(model, normal(ROWS, 2, 6, 6), {"target": 0})


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.LSTM(4, 6, batch_first=True, bidirectional=True), nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0].mean(1))


@case
def lstm() -> Case:
    return Case(Lstm(), normal(ROWS, 4, 4), {"target": 2})


class Block(nn.Module):
    """Attention by plain products, and a feed-forward part, each behind a norm and beside a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.qkv, self.mix = nn.Linear(8, 24), nn.Linear(8, 8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        split = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, 2, 4)  # (rows, tokens, which, heads, size)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        attention = torch.softmax(q @ k.transpose(-2, -1) / 2, -1)
        x = x + self.mix((attention @ v).transpose(1, 2).reshape(x.shape))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.out = nn.ModuleList([Block(), Block()]), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.out(x[:, 0])


@case
def transformer() -> Case:
    return Case(Transformer(), normal(ROWS, 5, 8), {"target": 1})


class Graph(nn.Module):
    """Two graph convolutions, the adjacency given with the features and normalised here."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        spread = adjacency / adjacency.sum(-1, keepdim=True)
        return (spread @ self.b(torch.relu(spread @ self.a(x)))).sum(1)


@case
def graph() -> Case:
    ring = torch.eye(4) + torch.eye(4).roll(1, 0) + torch.eye(4).roll(-1, 0)
    inputs = {"x": normal(ROWS, 4, 3), "adjacency": ring.double().repeat(ROWS, 1, 1)}
    return Case(Graph(), inputs, {"target": 0, "wrt": "x"})


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(4, 6), nn.Linear(3, 6), nn.Linear(6, CLASSES)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.out(torch.tanh(self.a(a)) * torch.sigmoid(self.b(b)))


@case
def several_inputs() -> Case:
    return Case(TwoInputs(), {"a": normal(ROWS, 4), "b": normal(ROWS, 3)}, {"target": 1})


# ---- Hugging Face, from small configurations ----

SMALL = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
WORDS = {"vocab_size": 30, "pad_token_id": 0}


def hugging_face(model: str, config: str, **options: Any) -> nn.Module:
    """A model of random weights that are large enough for attention to differ from token to token."""
    import transformers

    built = getattr(transformers, model)(getattr(transformers, config)(**options))
    with torch.no_grad():
        for weight in built.parameters():
            weight.copy_(
                torch.randn_like(weight) * 0.3 if weight.dim() > 1 else weight + 0.1 * torch.randn_like(weight)
            )
    return built


def ids() -> dict[str, Tensor]:
    """Two rows of five tokens, the second one padded."""
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    return {"input_ids": torch.randint(3, 30, (ROWS, 5)) * mask, "attention_mask": mask}


def encoder() -> nn.Module:
    return hugging_face(
        "BertForSequenceClassification", "BertConfig", **SMALL, **WORDS, max_position_embeddings=8, num_labels=CLASSES
    )


@case
def bert() -> Case:
    return Case(encoder(), ids(), {"target": 1})


@case
def bert_at_a_module() -> Case:
    return Case(encoder(), ids(), {"target": 1, "at": "bert.encoder.layer.0"})


@case
def gpt2() -> Case:
    model = hugging_face(
        "GPT2LMHeadModel", "GPT2Config", n_embd=8, n_layer=2, n_head=2, n_positions=8, bos_token_id=1, eos_token_id=2,
        **WORDS,
    )  # fmt: skip
    tokens = torch.randint(3, 30, (ROWS, 5))
    return Case(model, {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}, {"target": (3, 7)})


@case
def t5() -> Case:
    model = hugging_face(
        "T5ForConditionalGeneration", "T5Config", d_model=8, d_kv=4, d_ff=12, num_layers=2, num_heads=2,
        decoder_start_token_id=0, **WORDS,
    )  # fmt: skip
    return Case(model, {**ids(), "decoder_input_ids": torch.randint(3, 30, (ROWS, 3))}, {"target": (2, 7)})


@case
def vit() -> Case:
    model = hugging_face(
        "ViTForImageClassification", "ViTConfig", **SMALL, image_size=6, patch_size=3, num_channels=2,
        num_labels=CLASSES,
    )  # fmt: skip
    return Case(model, {"pixel_values": normal(ROWS, 2, 6, 6)}, {"target": 2})


# ---- bundled ----


def bundled(name: str, inputs: Any = None, rows: int = 1, methods: tuple[str, ...] = FEW, **options: Any) -> Case:
    """A model of the zoo, in float64, with its own first examples."""
    wrapped = whence.load(f"zoo:{name}")
    wrapped.model.double()
    return Case(wrapped, wrapped.examples[:rows] if inputs is None else inputs, options, methods)


@case
def sentiment() -> Case:
    return bundled("sentiment", TEXTS, methods=())


@case
def questions() -> Case:
    return bundled("questions", rows=2, target="HUMAN")


@case
def language() -> Case:
    return bundled("language")


@case
def translation() -> Case:
    return bundled("translation", ["Vielen Dank."])


@case
def molecules() -> Case:
    return bundled("molecules", rows=2, methods=FEW[:-1])


@case
def fashion_cnn() -> Case:
    return bundled("fashion-cnn", methods=FEW[:3])


@case
def fashion_vit() -> Case:
    return bundled("fashion-vit", methods=FEW[:-1])
