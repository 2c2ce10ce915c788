"""Text and image in one sequence, slowly: from the maps that the models themselves give and autograd's gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import whence
from tests.support import slow_attention as oracle
from tests.support.hf import ENDS, SMALL, make
from tests.support.models import close
from whence.methods.attention.max_flow import max_flows

pytestmark = pytest.mark.filterwarnings("ignore:.*every value of rows")
ORACLE_OF: list[str] = []  # those of test_attention, on other models
IMAGE = 59  # the id in whose places an image's features are put
G = torch.Generator().manual_seed(0)
IDS = torch.randint(3, IMAGE, (2, 6), generator=G)
PIXELS = torch.randn(2, 3, 16, 16, generator=G).double()


def llava(attention: str) -> nn.Module:
    vision = hf.CLIPVisionConfig(**SMALL, image_size=16, patch_size=4)
    text = hf.LlamaConfig(**SMALL, num_key_value_heads=1, head_dim=8, vocab_size=60, pad_token_id=0, **ENDS)
    config = hf.LlavaConfig(vision_config=vision, text_config=text, image_token_id=IMAGE, vision_feature_layer=-1)
    return make(hf.LlavaForConditionalGeneration, config, attention)


def vilt(attention: str) -> nn.Module:
    size = {"image_size": 16, "patch_size": 4, "max_image_length": -1, "max_position_embeddings": 32}
    return make(hf.ViltForQuestionAnswering, hf.ViltConfig(**SMALL, **size, vocab_size=60, num_labels=3), attention)


@dataclass(frozen=True)
class Joint:
    """A model of one sequence, its inputs, its target, and the row that is read."""

    build: Any
    inputs: dict[str, Tensor]
    target: Any
    read: int


def with_places(ids: Tensor) -> Tensor:
    return torch.cat([ids[:, :2], torch.full((len(ids), 16), IMAGE), ids[:, 2:]], 1)


def beside(ids: Tensor) -> dict[str, Tensor]:
    return {"input_ids": ids, "pixel_values": PIXELS, "attention_mask": torch.ones_like(ids)}


CASES = {
    "llava": Joint(llava, beside(with_places(IDS)), (21, 7), 21),
    "vilt": Joint(vilt, beside(IDS), 1, 0),
}


class Slow:
    """What the oracles ask of one row: maps and their gradients, hidden states and theirs."""

    def __init__(self, case: Joint, row: int) -> None:
        torch.manual_seed(0)
        inputs = {key: value[row : row + 1] for key, value in case.inputs.items()}
        out = case.build("eager")(**inputs, output_attentions=True, output_hidden_states=True)
        score = out.logits[0][case.target]
        maps, hidden = out.attentions, out.hidden_states[: len(out.attentions)]
        self.a = [a[0].detach().double() for a in maps]
        self.g = [g[0].double() for g in torch.autograd.grad(score, maps, retain_graph=True)]
        self.h = [h[0].detach() for h in hidden]
        self.dh = [d[0] for d in torch.autograd.grad(score, hidden)]


def order_of_patches() -> Tensor:
    """ViLT takes patches in a random order; so does this."""
    torch.manual_seed(0)
    return torch.multinomial(torch.ones(16).float(), 16)


def parts(name: str, line: Tensor) -> tuple[Tensor, Tensor]:
    """A line of the joint sequence as scores of ids and of patches."""
    if name == "llava":
        ids = torch.cat([line[:2], torch.zeros(16).double(), line[18:]])
        return ids, line[2:18].view(4, 4)
    patches = torch.zeros(16).double()
    patches[order_of_patches()] = line[7:]  # 6 tokens of the text and a class token come before them
    return line[:6], patches.view(4, 4)


def rows_of(read: int) -> dict[str, tuple[str, Any]]:
    """The definitions of METHODS at another row than the first."""
    mean, product = oracle.mean_over_heads, oracle.product
    eye = torch.eye(1).double()

    def residual(maps: list[Tensor]) -> list[Tensor]:
        return [m + eye.new_ones(len(m)).diag() for m in maps]

    def gradcam(s: Any) -> Tensor:
        a, g = s.a[-1], s.g[-1]
        return mean(torch.stack([g[h].mean() * a[h] for h in range(len(a))])).clamp(min=0)[read]

    return {
        "raw_attention": ("raw_attention", lambda s: mean(s.a[-1])[read]),
        "rollout": ("rollout", lambda s: product(oracle.residual(s, True))[read]),
        "generic": ("generic_attention", lambda s: product(residual(oracle.positive(s)))[read]),
        "gradients": ("attention_gradients", lambda s: product(oracle.both(s))[read]),
        "a x gradient": ("attention_x_gradient", lambda s: oracle.both(s)[-1][read]),
        "gradient": ("attention_gradient", lambda s: mean(s.g[-1])[read]),
        "sam": ("grad_sam", lambda s: oracle.sam(s, 0)),
        "gradcam": ("attention_gradcam", gradcam),
        "cat": ("cat", lambda s: oracle.tokens(s, False)),
        "attcat": ("attcat", lambda s: oracle.tokens(s, True)),
        "flow": (
            "attention_flow",
            lambda s: max_flows([a / 2 for a in oracle.residual(s, False)], eye.new_ones(len(s.a[0][0])).diag()[read]),
        ),
    }


@pytest.mark.parametrize(("name", "kind"), [("llava", "eager"), ("llava", "sdpa"), ("vilt", "eager")])
def test_text_and_image_in_one_sequence(name: str, kind: str) -> None:
    case = CASES[name]
    model = case.build(kind)
    slow = [Slow(case, row) for row in range(2)]
    for method, formula in rows_of(case.read).values():
        torch.manual_seed(0)
        a = whence.explain(model, case.inputs, method=method, target=case.target)
        for row in range(2):
            torch.manual_seed(0)
            ids, patches = parts(name, formula(slow[row]))
            largest = max(float(ids.abs().max()), float(patches.abs().max()))
            assert float((a.values["input_ids"][row] - ids).abs().max()) <= 2e-6 * largest, method
            if name == "llava" or row == 0:
                assert float((a.values["pixel_values"][row] - patches).abs().max()) <= 2e-6 * largest, method


@pytest.mark.parametrize("method", ["rollout", "generic_attention", "transformer_attribution", "attcat"])
def test_chance_in_the_order_of_patches_changes_nothing(method: str) -> None:
    model, found = vilt("eager"), []
    for seed in range(3):
        torch.manual_seed(seed)
        found.append(whence.explain(model, CASES["vilt"].inputs, method=method, target=1).values)
    for other in found[1:]:
        close(other["pixel_values"], found[0]["pixel_values"], 1e-9)
        close(other["input_ids"], found[0]["input_ids"], 1e-9)


@pytest.mark.parametrize("name", CASES)
def test_a_row_alone_and_in_a_padded_batch(name: str) -> None:
    case, model = CASES[name], CASES[name].build("eager" if name == "vilt" else "sdpa")
    ids = case.inputs["input_ids"].clone()
    mask = torch.ones_like(ids)
    mask[1, :1] = 0  # on the left, where a language model is padded
    if name == "vilt":
        mask = mask.flip(1)
    inputs = {**case.inputs, "attention_mask": mask}
    for method in ("rollout", "grad_sam", "attcat", "transformer_attribution"):
        both = whence.explain(model, inputs, method=method, target=case.target).values
        alone = whence.explain(
            model, {key: value[1:] for key, value in inputs.items()}, method=method, target=case.target
        ).values
        for key, value in alone.items():
            close(both[key][1:], value, 1e-6)
        assert not bool(both["input_ids"][mask == 0].any())
