"""What the authors' programs gave, and stock models with the weights that they had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

Truth = dict[str, Tensor]
Build = Callable[[str], nn.Module]


def in_double(tensors: Truth) -> Truth:
    return {key.removeprefix("f64."): value for key, value in tensors.items() if key.startswith("f64.")}


def chefer_bert(oracle: Any) -> tuple[Build, Truth]:
    """Stock BERT with the authors' weights, by its attention, and their tensors."""
    from transformers import BertConfig, BertForSequenceClassification

    tensors, config = oracle("chefer_bert")
    weights = {key.removeprefix("weights."): value for key, value in tensors.items() if key.startswith("weights.")}

    def build(attention: str) -> nn.Module:
        settings = BertConfig(**config)
        settings._attn_implementation = attention
        model = BertForSequenceClassification(settings).double().eval()
        model.load_state_dict(weights)
        return model

    return build, in_double(tensors)


def chefer_vit(oracle: Any) -> tuple[Build, Truth]:
    """Stock ViT with the authors' weights, by its attention, and their tensors."""
    from transformers import ViTConfig, ViTForImageClassification

    tensors, config = oracle("chefer_vit")
    weights = {key.removeprefix("weights."): value for key, value in tensors.items() if key.startswith("weights.")}

    def build(attention: str) -> nn.Module:
        settings = ViTConfig(
            image_size=config["img_size"], patch_size=config["patch_size"], hidden_size=config["embed_dim"],
            num_hidden_layers=config["depth"], num_attention_heads=config["num_heads"], intermediate_size=96,
            num_labels=config["num_classes"], layer_norm_eps=1e-6,
        )  # fmt: skip
        settings._attn_implementation = attention
        model = ViTForImageClassification(settings).double().eval()
        model.load_state_dict(renamed(weights))
        model.vit.layernorm.eps = 1e-5
        return model

    return build, in_double(tensors)


def renamed(weights: Truth) -> Truth:
    """The authors' names in Hugging Face's, their one projection split in three."""
    found = {
        "vit.embeddings.cls_token": weights["cls_token"],
        "vit.embeddings.position_embeddings": weights["pos_embed"],
        "vit.embeddings.patch_embeddings.projection.weight": weights["patch_embed.proj.weight"],
        "vit.embeddings.patch_embeddings.projection.bias": weights["patch_embed.proj.bias"],
    }
    names = {"attn.proj": "attention.o_proj", "norm1": "layernorm_before", "norm2": "layernorm_after"}
    names |= {"mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"}
    for kind in ("weight", "bias"):
        found |= {f"vit.layernorm.{kind}": weights[f"norm.{kind}"], f"classifier.{kind}": weights[f"head.{kind}"]}
        for layer in range(4):
            ours, theirs = f"vit.layers.{layer}", f"blocks.{layer}"
            found |= {f"{ours}.{mine}.{kind}": weights[f"{theirs}.{name}.{kind}"] for name, mine in names.items()}
            three = weights[f"{theirs}.attn.qkv.{kind}"].chunk(3)
            found |= {f"{ours}.attention.{p}_proj.{kind}": part for p, part in zip("qkv", three, strict=True)}
    return found
