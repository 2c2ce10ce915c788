"""Images: transformers, windows, pyramids, convolutions, detectors."""

from __future__ import annotations

from typing import Any

import transformers as hf
from torch import Tensor

from benchmarks.families.case import Case, draw, of_tests
from tests.support.hf import FAMILIES, ROWS, VISION, image, make, of

IN_TESTS = "vit deit swin beit convnext resnet mobilenet_v2".split()
CONVOLUTION = {"attends": False, "kinds": ("eager",)}
PYRAMID = {"reports": False}  # its maps shrink from stage to stage


def sight(model: str, config: str, inputs: Any = image, *, facts: Any = None, **options: Any) -> Case:
    return Case(of(model, config, **options), inputs, "vision", **(facts or {}))


def detr(attention: str) -> Any:
    body = hf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic", out_features=["stage2"]
    )
    config = hf.DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=body, d_model=16,
        encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=24,
        decoder_ffn_dim=24, num_queries=5, num_labels=3,
    )  # fmt: skip
    return make(hf.DetrForObjectDetection, config, attention)


def before_detections(eager: Any, here: Any, theirs: list[Tensor]) -> dict[str, Tensor]:
    """A class token, sixteen patches, three tokens that look for things."""
    return {"pixel_values": theirs[0][:, 1:17].unflatten(1, (4, 4))}


def of_encoder(eager: Any, here: Any, theirs: list[Tensor]) -> dict[str, Tensor]:
    """The decoder's own positions stand for no part of the image."""
    return {"pixel_values": theirs[-1].unflatten(1, (4, 4))}


CASES: dict[str, Case] = {
    **{name: of_tests(FAMILIES[name], "vision", reports=name != "swin") for name in IN_TESTS},
    "swinv2": sight(
        "Swinv2ForImageClassification", "Swinv2Config", image_size=16, patch_size=2, embed_dim=8, depths=[2, 2],
        num_heads=[2, 2], window_size=4, num_labels=3, facts=PYRAMID,
    ),
    "dinov2": sight("Dinov2ForImageClassification", "Dinov2Config", **VISION, mlp_ratio=2),
    "regnet": sight(
        "RegNetForImageClassification", "RegNetConfig", embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1],
        groups_width=4, num_labels=3, layer_type="y", facts=CONVOLUTION,
    ),
    "efficientnet": sight(
        "EfficientNetForImageClassification", "EfficientNetConfig", lambda: image(size=32), image_size=32,
        width_coefficient=0.25, depth_coefficient=0.25, hidden_dim=320, num_labels=3, facts=CONVOLUTION,
    ),
    "poolformer": sight(
        "PoolFormerForImageClassification", "PoolFormerConfig", lambda: image(size=32), hidden_sizes=[8, 8, 12, 12],
        depths=[1, 1, 1, 1], num_labels=3, facts=CONVOLUTION,
    ),
    "segformer": sight(
        "SegformerForImageClassification", "SegformerConfig", lambda: image(size=32), num_encoder_blocks=2,
        depths=[1, 1], hidden_sizes=[8, 12], num_attention_heads=[1, 2], sr_ratios=[2, 1], patch_sizes=[3, 3],
        strides=[4, 2], mlp_ratios=[2, 2], decoder_hidden_size=8, num_labels=3, facts=PYRAMID,
    ),
    "segformer, pixels": Case(
        of("SegformerForSemanticSegmentation", "SegformerConfig", num_encoder_blocks=2, depths=[1, 1],
           hidden_sizes=[8, 12], num_attention_heads=[1, 2], sr_ratios=[2, 1], patch_sizes=[3, 3], strides=[4, 2],
           mlp_ratios=[2, 2], decoder_hidden_size=8, num_labels=3),
        lambda: image(size=32), "vision", target=(1, 3, 3), reports=False,
    ),
    "pvt": sight(
        "PvtForImageClassification", "PvtConfig", lambda: image(size=32), image_size=32, num_encoder_blocks=4,
        depths=[1, 1, 1, 1], hidden_sizes=[4, 4, 8, 8], num_attention_heads=[1, 1, 2, 2], patch_sizes=[4, 2, 2, 2],
        strides=[4, 2, 2, 2], sequence_reduction_ratios=[2, 2, 1, 1], mlp_ratios=[2, 2, 2, 2], num_labels=3,
        facts=PYRAMID,
    ),
    "mobilevit": sight(
        "MobileViTForImageClassification", "MobileViTConfig", lambda: image(size=64), image_size=64, patch_size=2,
        hidden_sizes=[8, 8, 8], neck_hidden_sizes=[4, 4, 4, 4, 8, 8, 8], num_attention_heads=2, num_labels=3,
        facts=PYRAMID,
    ),
    "levit": sight(
        "LevitForImageClassification", "LevitConfig", lambda: image(size=64), image_size=64,
        hidden_sizes=[8, 8, 8], num_attention_heads=[2, 2, 2], depths=[1, 1, 1], key_dim=[4, 4, 4], num_labels=3,
        facts={**PYRAMID, "kinds": ("eager",)},
    ),
    "focalnet": sight(
        "FocalNetForImageClassification", "FocalNetConfig", image_size=16, patch_size=2, embed_dim=8,
        depths=[1, 1], hidden_sizes=[8, 16], focal_levels=[2, 2], focal_windows=[3, 3], num_labels=3,
        facts=CONVOLUTION,
    ),
    "yolos": Case(
        of("YolosForObjectDetection", "YolosConfig", **{**VISION, "image_size": [16, 16]}, num_detection_tokens=3),
        image, "vision", target=(1, 2), lay=before_detections,
    ),
    "detr": Case(detr, lambda: image(size=32), "vision", target=(1, 2), lay=of_encoder),
    "videomae": sight(
        "VideoMAEForVideoClassification", "VideoMAEConfig",
        lambda: {"pixel_values": draw(ROWS, 4, 3, 8, 8)}, **{**VISION, "image_size": 8}, num_frames=4, tubelet_size=2,
    ),
    "perceiver": sight(
        "PerceiverForImageClassificationLearned", "PerceiverConfig", lambda: image(size=16), image_size=16,
        num_latents=4, d_latents=16, d_model=16, num_blocks=1, num_self_attends_per_block=2,
        num_self_attention_heads=2, num_cross_attention_heads=2, num_labels=3,
        facts={**PYRAMID, "kinds": ("eager",)},
    ),
}  # fmt: skip
