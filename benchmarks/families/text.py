"""Encoders of text: classifiers, taggers, masked language models."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.families.case import Case, ids, of_tests
from tests.support.hf import ENDS, FAMILIES, POSITION, ROWS, SMALL, TEXT, of, text

BASE = {**SMALL, **TEXT, **POSITION}
IN_TESTS = "bert roberta distilbert albert electra deberta_v2 modernbert".split()


def long() -> dict[str, Any]:
    """Sixteen tokens, the last of the second row padding, for models that work in blocks."""
    found = ids(ROWS, 16)
    mask = torch.ones_like(found)
    mask[1, 13:] = 0
    return {"input_ids": found * mask, "attention_mask": mask}


def padded_left() -> dict[str, Any]:
    return {key: value.flip(1) for key, value in text().items()}


def with_global() -> dict[str, Any]:
    """And one token that all the others attend to, as Longformer wants it."""
    given = long()
    return {**given, "global_attention_mask": (torch.arange(16) == 0).long().expand(ROWS, 16).contiguous()}


def in_full(output: Any) -> dict[str, Any]:
    """Longformer's maps as (rows, heads, query, key): it reports the global token's column, then a window of 5."""
    maps = []
    for near, of_global in zip(output["attentions"], output["global_attentions"], strict=True):
        rows, heads, n, _ = near.shape
        full = near.new_zeros(rows, heads, n, n)
        for query in range(n):
            for place in range(5):
                key = query + place - 2
                if 0 <= key < n:
                    full[:, :, query, key] += near[:, :, query, 1 + place]
            full[:, :, query, 0] += near[:, :, query, 0]
        full[:, :, 0] = of_global[..., 0]
        maps.append(full)
    return {"attentions": maps}


def boxed() -> dict[str, Any]:
    """Text with a box on the page for each token."""
    left, top = (torch.randint(0, 10, (ROWS, 7, 1), generator=torch.Generator().manual_seed(n)) for n in (6, 7))
    return {**text(), "bbox": torch.cat([left, top, left + 4, top + 5], -1)}


def classifier(name: str, config: str | None = None, inputs: Any = text, **options: Any) -> Case:
    facts = {
        key: options.pop(key) for key in ("kinds", "attends", "reports", "target", "dtype", "parts") if key in options
    }
    head = options.pop("head", "ForSequenceClassification")
    built = of(name + head, (config or name) + "Config", **{**options.pop("base", BASE), **options})
    return Case(built, inputs, "text", **facts)


def exact(build: Any) -> Any:
    """Nyströmformer with the start of its iteration that does not couple the rows of a batch."""

    def built(attention: str) -> Any:
        model = build(attention)
        for module in model.modules():
            if hasattr(module, "init_option"):
                module.init_option = "exact"  # its configuration cannot say so
        return model

    return built


CASES: dict[str, Case] = {
    **{name: of_tests(FAMILIES[name], "text") for name in IN_TESTS},
    "bert, tags": classifier("Bert", head="ForTokenClassification", target=(2, 1)),
    "bert, masked": classifier("Bert", head="ForMaskedLM", target=(3, 5)),
    "bert, answers": classifier(
        "Bert", head="ForQuestionAnswering", num_labels=2, target=lambda out: out.start_logits[:, 2]
    ),
    "camembert": classifier("Camembert"),
    "deberta": classifier(
        "Deberta", relative_attention=True, pos_att_type=["c2p", "p2c"], position_biased_input=False, kinds=("eager",)
    ),
    "mobilebert": classifier(
        "MobileBert", embedding_size=8, intra_bottleneck_size=8, true_hidden_size=8, num_feedforward_networks=2
    ),
    "xlnet": classifier("XLNet", inputs=padded_left, base=TEXT, d_model=16, n_layer=2, n_head=2, d_inner=24),
    "funnel": classifier(
        "Funnel", base=TEXT, block_sizes=[1, 1], num_decoder_layers=1, d_model=16, n_head=2, d_head=8, d_inner=24,
    ),
    "longformer": classifier(
        "Longformer", inputs=with_global, parts={None: in_full}, attention_window=4, max_position_embeddings=40
    ),
    "big_bird": classifier("BigBird", inputs=long, attention_type="original_full"),
    "big_bird, blocks": classifier(
        "BigBird", inputs=lambda: {"input_ids": ids(ROWS, 64)}, attention_type="block_sparse", block_size=4,
        num_random_blocks=1, max_position_embeddings=64, reports=False,  # the rows of what it reports do not sum to 1
    ),
    "reformer": classifier(
        "Reformer", inputs=lambda: {"input_ids": ids(ROWS, 16)}, attn_layers=["local", "lsh"], num_buckets=4,
        num_hashes=2, lsh_attn_chunk_length=4, local_attn_chunk_length=4, axial_pos_shape=[4, 4],
        axial_pos_embds_dim=[8, 8], attention_head_size=8, feed_forward_size=24, is_decoder=False, hash_seed=1,
        num_chunks_after=0, reports=False,
    ),
    "fnet": classifier("FNet", inputs=lambda: {"input_ids": ids(ROWS, 7)}, attends=False),
    "squeezebert": classifier(
        "SqueezeBert", embedding_size=16, q_groups=2, k_groups=2, v_groups=2, intermediate_groups=2, output_groups=2
    ),
    "convbert": classifier("ConvBert", embedding_size=16, head_ratio=1, conv_kernel_size=3, reports=False),
    "mpnet": classifier("MPNet"),
    "nystromformer": Case(
        exact(of("NystromformerForSequenceClassification", "NystromformerConfig", **BASE, num_landmarks=4,
                 segment_means_seq_len=16, conv_kernel_size=3)),
        lambda: {"input_ids": ids(ROWS, 16)}, "text", reports=False,
    ),
    "roformer": classifier("RoFormer", embedding_size=16),
    "rembert": classifier("RemBert", input_embedding_size=12, output_embedding_size=12),
    "esm": classifier("Esm", mask_token_id=4, position_embedding_type="rotary", token_dropout=False),
    "ibert": classifier("IBert"),
    "xlm": classifier("XLM", emb_dim=16, n_layers=2, n_heads=2, n_words=60, max_position_embeddings=32, **ENDS),
    "layoutlm": classifier("LayoutLM", inputs=boxed, max_2d_position_embeddings=32),
    "canine": classifier(
        "Canine", inputs=lambda: {"input_ids": ids(ROWS, 16)}, num_hash_functions=2, num_hash_buckets=32,
        downsampling_rate=4, reports=False, dtype=torch.float32,
    ),
}  # fmt: skip
