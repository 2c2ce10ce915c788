"""Learned tokens that look at an image and then stand among words (a Q-Former), from the model's own softmaxes."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

import whence
from tests.support.hf import ENDS, POSITION, SMALL, make

ORACLE_OF = ("rollout", "generic_attention")

IMAGE = 59  # the id in whose places the learned tokens are put
READ, QUERIES, LENGTH = 9, 4, 10
G = torch.Generator().manual_seed(0)
WORDS = torch.randint(3, IMAGE, (2, 6), generator=G)
PIXELS = torch.randn(2, 3, 16, 16, generator=G).double()
ASKED = torch.randint(3, 30, (2, 5), generator=G)


def parts() -> dict[str, Any]:
    sight = {**SMALL, "image_size": 16, "patch_size": 4}
    queries = {**SMALL, **POSITION, "vocab_size": 30, "encoder_hidden_size": 16, "cross_attention_frequency": 1}
    words = {**SMALL, **ENDS, **POSITION, "vocab_size": 60, "pad_token_id": 0, "ffn_dim": 24, "word_embed_proj_dim": 16}
    return {
        "vision_config": sight, "qformer_config": queries, "text_config": {"model_type": "opt", **words},
        "num_query_tokens": QUERIES, "image_token_index": IMAGE,
    }  # fmt: skip


def blip2() -> nn.Module:
    return make(hf.Blip2ForConditionalGeneration, hf.Blip2Config(**parts()), "eager")


def instruct() -> nn.Module:
    return make(hf.InstructBlipForConditionalGeneration, hf.InstructBlipConfig(**parts()), "eager")


def inputs(name: str) -> dict[str, Tensor]:
    ids = torch.cat([WORDS[:, :2], torch.full((2, QUERIES), IMAGE), WORDS[:, 2:]], 1)
    asked = {"qformer_input_ids": ASKED, "qformer_attention_mask": torch.ones_like(ASKED)}
    return {"input_ids": ids, "pixel_values": PIXELS, **(asked if name == "instruct" else {})}


MODELS = {"blip2": blip2, "instruct": instruct}


def maps_of(model: nn.Module, given: dict[str, Tensor]) -> tuple[list[Tensor], Tensor]:
    """Every attention of one row: two of the image's, self and cross by turns, two of the language model's."""
    plain, met = F.softmax, []

    def seen(*args: Any, **kwargs: Any) -> Tensor:
        met.append(plain(*args, **kwargs))
        return met[-1]

    with mock.patch.object(F, "softmax", seen):
        score = model(**given).logits[0, READ, 7]
    return [m for m in met if m.dim() == 4], score


def rolled(maps: list[Tensor]) -> dict[str, Tensor]:
    """Rollout over one sequence of everything: the language model's positions, the Q-Former's, the image's."""
    a = [m[0].mean(0).detach().double() for m in maps]
    joint, n = LENGTH + len(a[2]), LENGTH + len(a[2]) + 17
    own, image, asking = slice(LENGTH, joint), slice(joint, n), slice(LENGTH, LENGTH + QUERIES)
    eye = torch.eye(n).double()

    def step(block: Tensor, rows: slice, columns: slice) -> Tensor:
        whole = eye.clone()
        whole[rows, columns] += block
        return whole / whole.sum(-1, keepdim=True)

    r = step(a[1], image, image) @ step(a[0], image, image)
    for itself, across in ((a[2], a[3]), (a[4], a[5])):
        r = step(across, asking, image) @ step(itself, own, own) @ r
    placed = eye.clone()
    placed[2 : 2 + QUERIES] = eye[asking]
    r = placed @ r
    for block in a[6:]:
        r = step(block, slice(LENGTH), slice(LENGTH)) @ r
    line = r[READ]
    return {
        "input_ids": line[:LENGTH], "qformer_input_ids": line[LENGTH + QUERIES : joint],
        "pixel_values": line[joint + 1 :].view(4, 4),
    }  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_rollout_goes_through_learned_tokens(name: str) -> None:
    model, given = MODELS[name](), inputs(name)
    found = whence.explain(model, given, method="rollout", target=(READ, 7)).values
    for row in range(2):
        maps, _ = maps_of(model, {key: value[row : row + 1] for key, value in given.items()})
        by_hand = rolled(maps)
        for key, value in found.items():
            assert float((value[row] - by_hand[key]).abs().max()) < 1e-7, key
            assert bool((value[row] != 0).any()), key


def normal(r: Tensor) -> Tensor:
    eye = torch.eye(len(r)).double()
    rest = r - eye
    total = rest.sum(-1, keepdim=True)
    return eye + torch.where(total != 0, rest / torch.where(total != 0, total, 1.0), 0.0)


def test_generic_attention_goes_through_learned_tokens() -> None:
    """R_ji = R_jj·P·R_qi; the first look of the learned tokens at one another depends on no input and is left out."""
    model, given = blip2(), inputs("blip2")
    found = whence.explain(model, given, method="generic_attention", target=(READ, 7)).values
    for row in range(2):
        maps, score = maps_of(model, {key: value[row : row + 1] for key, value in given.items()})
        slopes = torch.autograd.grad(score, maps)
        m = [(a * g).clamp(min=0).mean(1)[0].detach().double() for a, g in zip(maps, slopes, strict=True)]
        image, queries, words = (torch.eye(n).double() for n in (17, QUERIES, LENGTH))
        for step in m[:2]:
            image = image + step @ image
        across = m[3] @ normal(image)
        queries, across = queries + m[4] @ queries, across + m[4] @ across
        across = across + normal(queries).mT @ m[5] @ normal(image)
        for step in m[6:]:
            words = words + step @ words
        line = words[READ]
        patches = (line[2 : 2 + QUERIES] @ across)[1:].view(4, 4)
        line = torch.cat([line[:2], torch.zeros(QUERIES).double(), line[2 + QUERIES :]])
        assert float((found["input_ids"][row] - line).abs().max()) < 1e-7
        assert float((found["pixel_values"][row] - patches).abs().max()) < 1e-7 * float(patches.max())


def test_what_has_no_rule_is_refused() -> None:
    with pytest.raises(whence.WhenceError, match="by turns"):
        whence.explain(instruct(), inputs("instruct"), method="generic_attention", target=(READ, 7))


@pytest.mark.parametrize("name", MODELS)
def test_one_layer_says_that_it_does_not_see_the_image(name: str) -> None:
    with pytest.warns(whence.WhenceWarning, match="'pixel_values'.*no positions"):
        a = whence.explain(MODELS[name](), inputs(name), method="raw_attention", target=(READ, 7))
    assert a.values["pixel_values"].shape == (2, 16, 16)
    shares = [row["other_positions"] for row in a.receipt.get("rows", [])] or a.receipt["other_positions"]
    assert all(0.2 < float(share) < 0.8 for share in shares)
