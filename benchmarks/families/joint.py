"""Several kinds of input at once, and sound."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor

from benchmarks.families import independent
from benchmarks.families.case import Case, draw, ids, of_tests
from tests.support.hf import ENDS, FAMILIES, POSITION, ROWS, SMALL, TEXT, image, make, of, text

WORDS = {**SMALL, "vocab_size": 60, "pad_token_id": 0, **ENDS, **POSITION}
SIGHT = {**SMALL, "image_size": 16, "patch_size": 4}
SOUND = {
    **SMALL, "num_labels": 3, "vocab_size": 60, "conv_dim": [8, 8], "conv_stride": [4, 2], "conv_kernel": [5, 3],
    "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
    "classifier_proj_size": 8, "conv_bias": False,
}  # fmt: skip


def llava(attention: str) -> Any:
    config = hf.LlavaConfig(
        vision_config=hf.CLIPVisionConfig(**SIGHT), image_token_index=59, vision_feature_layer=-1,
        text_config=hf.LlamaConfig(**{**WORDS, "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 64}),
    )  # fmt: skip
    return make(hf.LlavaForConditionalGeneration, config, attention)


def asked() -> dict[str, Any]:
    """Sixteen image tokens in the midst of six words."""
    words = ids(ROWS, 6, high=59)
    places = torch.full((ROWS, 16), 59)
    return {"input_ids": torch.cat([words[:, :2], places, words[:, 2:]], 1), **image()}


def blip(attention: str) -> Any:
    config = hf.BlipConfig(text_config={**WORDS, "encoder_hidden_size": 16}, vision_config=SIGHT, projection_dim=8)
    return make(hf.BlipForImageTextRetrieval, config, attention)


# ---- one sequence of words and of what was made of an image ----

LARGE = {**WORDS, "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 64}
LLAMA = {"model_type": "llama", **LARGE}
PATCHES = {**SIGHT, "model_type": "siglip_vision_model", "vision_use_head": False}
OPT = {"model_type": "opt", **WORDS, "ffn_dim": 24, "word_embed_proj_dim": 16}
QUERIES = {**SMALL, **POSITION, "vocab_size": 30, "encoder_hidden_size": 16, "cross_attention_frequency": 1}
LEARNED = {"vision_config": SIGHT, "qformer_config": QUERIES, "text_config": OPT, "num_query_tokens": 4,
           "image_token_index": 59}  # fmt: skip
GRID = {
    "num_heads": 2,
    "hidden_size": 16,
    "depth": 2,
    "patch_size": 4,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
}
TURNED = {
    "text_config": {**{key: value for key, value in LARGE.items() if key != "head_dim"},
                    "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}},
    "image_token_id": 59, "video_token_id": 58, "vision_start_token_id": 57, "vision_end_token_id": 56,
}  # fmt: skip


class Packed(torch.nn.Module):
    """A model that takes the patches of all rows one under another, given them row by row."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, pixel_values: Tensor, **more: Any) -> Any:
        return self.model(input_ids=input_ids, pixel_values=pixel_values.flatten(0, 1), **more)


def packed(model: str, config: str, **vision: Any) -> Any:
    return lambda kind: Packed(of(model, config, vision_config={**GRID, **vision}, **TURNED)(kind))


def few(images: int = 0) -> dict[str, Any]:
    """Four image tokens in the midst of six words; pixels with an axis for several images, if asked."""
    words, pixels = ids(ROWS, 6, high=56), image()["pixel_values"]
    joined = torch.cat([words[:, :2], torch.full((ROWS, 4), 59), words[:, 2:]], 1)
    return {"input_ids": joined, "pixel_values": pixels[:, None] if images else pixels}


def with_types(name: str) -> dict[str, Any]:
    made = few()
    return {**made, name: (made["input_ids"] == 59).long()}


def with_question() -> dict[str, Any]:
    asked = ids(ROWS, 5, high=30, seed=9)
    return {**few(), "qformer_input_ids": asked, "qformer_attention_mask": torch.ones_like(asked)}


def cut() -> dict[str, Any]:
    """Sixteen patches, of which four make one token, as their processors give them."""
    made = {**with_types("mm_token_type_ids"), "pixel_values": draw(ROWS, 16, 96, seed=1)}
    made["input_ids"][:, 1] = 57
    return {**made, "image_grid_thw": torch.tensor([[1, 4, 4]] * ROWS)}


# ---- whose scores a position's are ----


def four_places(*shape: int) -> Any:
    """Four image tokens, laid out like this; the placeholders' own embeddings go nowhere."""

    def lay(eager: Any, here: Any, theirs: list[Tensor]) -> dict[str, Tensor]:
        words = theirs[0].clone()
        words[:, 2:6] = 0
        return {"input_ids": words, "pixel_values": theirs[0][:, 2:6].unflatten(1, shape)}

    return lay


def among_words(eager: Any, here: Any, theirs: list[Tensor]) -> dict[str, Tensor]:
    """Learned tokens stand in the image's places: what the words have is told by the language model alone."""
    words = theirs[0].clone()
    words[:, 2:6] = 0
    return {"input_ids": words}


def llava_places(eager: Any, here: Any, theirs: list[Tensor]) -> dict[str, Tensor]:
    """Where the image's tokens stand in the language model's sequence; the placeholders' own embeddings go nowhere."""
    image, words = theirs[0][:, 2:18].unflatten(1, (4, 4)), theirs[0].clone()
    words[:, 2:18] = 0
    return {"input_ids": words, "pixel_values": image}


def git_places(eager: Any, here: Any, theirs: list[Tensor]) -> dict[str, Tensor]:
    """The image's class token, its patches, the words."""
    words = theirs[0][:, 17:] * here.inputs["attention_mask"]
    return {"input_ids": words, "pixel_values": theirs[0][:, 1:17].unflatten(1, (4, 4))}


def vilt_places(eager: Any, here: Any, theirs: list[Tensor]) -> dict[str, Tensor]:
    """Seven words, a class token, and the patches in an order that the model draws by lot."""
    embed, seen = eager.vilt.embeddings.visual_embed, []
    telling = mock.patch.object(
        eager.vilt.embeddings, "visual_embed", lambda *a, **k: seen.append(embed(*a, **k)) or seen[-1]
    )
    with telling, independent.same_lots():
        independent.call(eager, here.inputs)
    where = seen[0][2][0]  # (rows, patches, 2)
    grid = torch.zeros(len(where), 4, 4, dtype=theirs[0].dtype)
    for row, places in enumerate(where):
        grid[row, places[:, 0], places[:, 1]] = theirs[0][row, 8:]
    return {"input_ids": theirs[0][:, :7] * here.inputs["attention_mask"], "pixel_values": grid}


def visual_bert_places(eager: Any, here: Any, theirs: list[Tensor]) -> dict[str, Tensor]:
    return {"input_ids": theirs[0][:, :7] * here.inputs["attention_mask"], "visual_embeds": theirs[0][:, 7:]}


def ast_places(eager: Any, here: Any, theirs: list[Tensor]) -> dict[str, Tensor]:
    """Two tokens before the patches, which go along time first; the input has time first, then frequency."""
    return {"input_values": theirs[0][:, 2:].unflatten(1, (2, 4)).mT}


def real(before: int, after: int) -> Any:
    """What is real of a sequence that has positions of an image before and after its words."""
    return lambda inputs: F.pad(inputs["attention_mask"], (before, after), value=1)


CASES: dict[str, Case] = {
    "clip": of_tests(
        FAMILIES["clip"], "joint",
        parts={"input_ids": lambda out: out.text_model_output, "pixel_values": lambda out: out.vision_model_output},
    ),
    "lxmert": of_tests(FAMILIES["lxmert"], "joint", reports=False),
    "siglip": Case(
        of("SiglipModel", "SiglipConfig", text_config=WORDS, vision_config=SIGHT),
        lambda: {"input_ids": ids(ROWS, 7), **image()}, "joint", target=lambda out: out.logits_per_image.diagonal(),
        reports=False,
    ),
    "vilt": Case(
        of("ViltForQuestionAnswering", "ViltConfig", **{**SMALL, **TEXT, **POSITION}, image_size=16, patch_size=4,
           max_image_length=-1),
        lambda: {**text(), **image()}, "joint", lay=vilt_places, real=real(0, 17),
    ),
    "visual_bert": Case(
        of("VisualBertForQuestionAnswering", "VisualBertConfig", **{**SMALL, **TEXT, **POSITION},
           visual_embedding_dim=10),
        lambda: {**text(), "visual_embeds": draw(ROWS, 4, 10),
                 "visual_attention_mask": torch.ones(ROWS, 4, dtype=torch.long),
                 "visual_token_type_ids": torch.ones(ROWS, 4, dtype=torch.long)},
        "joint", lay=visual_bert_places, real=real(0, 4),
    ),
    "llava": Case(llava, asked, "joint", target=(21, 7), lay=llava_places),
    "paligemma": Case(
        of("PaliGemmaForConditionalGeneration", "PaliGemmaConfig", vision_config=PATCHES, image_token_index=59,
           text_config={"model_type": "gemma", **LARGE}, projection_dim=16),
        lambda: {**asked(), "token_type_ids": torch.zeros(ROWS, 22, dtype=torch.long)},  # eager and sdpa differ without
        "joint", target=(21, 7), lay=llava_places,
    ),
    "gemma3, image": Case(
        of("Gemma3ForConditionalGeneration", "Gemma3Config", vision_config=PATCHES, image_token_index=59,
           text_config={**LARGE, "sliding_window": 32, "layer_types": ["full_attention", "sliding_attention"]},
           mm_tokens_per_image=4, boi_token_index=57, eoi_token_index=58),
        lambda: with_types("token_type_ids"), "joint", target=(9, 7), lay=four_places(2, 2),
    ),
    "idefics3": Case(
        of("Idefics3ForConditionalGeneration", "Idefics3Config", vision_config=SIGHT, text_config=LLAMA,
           image_token_id=59, scale_factor=2),
        lambda: few(1), "joint", target=(9, 7), lay=four_places(2, 2), rtol=1e-5,
    ),
    "smolvlm": Case(
        of("SmolVLMForConditionalGeneration", "SmolVLMConfig", vision_config=SIGHT, text_config=LLAMA,
           image_token_id=59, scale_factor=2),
        lambda: few(1), "joint", target=(9, 7), lay=four_places(2, 2), rtol=1e-5,
    ),
    "qwen2_vl": Case(
        packed("Qwen2VLForConditionalGeneration", "Qwen2VLConfig", embed_dim=16, mlp_ratio=2), cut, "joint",
        target=(9, 7), lay=four_places(4), rtol=1e-5,
    ),
    "qwen2_5_vl": Case(
        packed("Qwen2_5_VLForConditionalGeneration", "Qwen2_5_VLConfig", out_hidden_size=16, intermediate_size=24,
               window_size=16, fullatt_block_indexes=[1]),
        cut, "joint", target=(9, 7), lay=four_places(4),
    ),
    "blip2": Case(
        of("Blip2ForConditionalGeneration", "Blip2Config", **LEARNED), few, "joint", target=(9, 7),
        parts={None: lambda out: out.language_model_outputs}, lay=among_words,
    ),
    "instructblip": Case(
        of("InstructBlipForConditionalGeneration", "InstructBlipConfig", **LEARNED), with_question, "joint",
        target=(9, 7), parts={None: lambda out: out.language_model_outputs}, lay=among_words,
    ),
    "blip": Case(
        blip, lambda: {**text(), **image()}, "joint", target=lambda out: out.itm_score[:, 1], reports=False
    ),
    "git": Case(
        of("GitForCausalLM", "GitConfig", **WORDS, vision_config=SIGHT), lambda: {**text(), **image()}, "joint",
        target=lambda out: out.logits[:, 21, 7],  # the last word that is real in every row
        lay=git_places, real=real(17, 0),
    ),
    "wav2vec2": Case(
        of("Wav2Vec2ForSequenceClassification", "Wav2Vec2Config", **SOUND), lambda: {"input_values": draw(ROWS, 120)},
        "sound",
    ),
    "wav2vec2, letters": Case(
        of("Wav2Vec2ForCTC", "Wav2Vec2Config", **SOUND), lambda: {"input_values": draw(ROWS, 120)}, "sound",
        target=(3, 7),
    ),
    "hubert": Case(
        of("HubertForSequenceClassification", "HubertConfig", **SOUND), lambda: {"input_values": draw(ROWS, 120)},
        "sound",
    ),
    "ast": Case(
        of("ASTForAudioClassification", "ASTConfig", **SMALL, num_labels=3, patch_size=4, frequency_stride=4,
           time_stride=4, max_length=16, num_mel_bins=8),
        lambda: {"input_values": draw(ROWS, 16, 8)}, "sound", lay=ast_places,
    ),
}  # fmt: skip
