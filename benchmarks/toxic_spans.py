"""How far the methods' token scores agree with people: `python -m benchmarks.toxic_spans [--posts N] [methods ...]`.

The posts are those of SemEval-2021's test file in which annotators marked toxic characters; a token is gold where it
overlaps them. Explained is bert-tiny-toxicity's logit for "toxic"; scores are used with their sign, special tokens are
not ranked. Agreement says what a method finds of what people see. Where the model looks elsewhere than people do, a
method that follows the model scores low, so this is no measure of faithfulness.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import whence
from benchmarks.trained import DATA
from whence.evaluation import bootstrap
from whence.evaluation.metrics.segmentation import average_precision
from whence.util.progress import steps
from whence.views.tables import table

TOKENS, BATCH = 256, 32  # what the model was trained with; posts per call
HEADS = ("AUPRC", "F1, k gold", "F1, k average")
SUM_ABS = {"channels": "sum_abs"}  # a layer norm follows the embedding: the sum of a gradient is 0
ZERO_AND_PAD = [{"baseline": "zero"}, {"baseline": "pad"}]

VARIANTS: dict[str, list[dict[str, Any]]] = {  # a method that is not here runs once, with its defaults
    "gradient": [SUM_ABS],
    "smoothgrad": [{"samples": 10, **SUM_ABS}],
    "deconvnet": [SUM_ABS],
    "guided_backprop": [SUM_ABS],
    "integrated_gradients": ZERO_AND_PAD,
    "expected_gradients": [{"baseline": ["zero", "pad"], "samples": 20}],
    "deeplift": [{**start, "rule": rule} for start in ZERO_AND_PAD for rule in ("rescale", "reveal_cancel")],
    "deepshap": [{"baseline": ["zero", "pad"]}],
    "leave_one_out": ZERO_AND_PAD,
    "occlusion": [{"window": 3, "stride": 1}],
    "shapley": [{"exact": 8, "samples": 2}],
    "kernel_shap": [{"samples": 128}],
    "lime": [{"samples": 128}],
}
ON_REQUEST = {  # not among the defaults, and why
    "path_integrated_gradients": "without a path of your own it is integrated_gradients",
    **dict.fromkeys(("grad_cam", "guided_grad_cam"), "for images and signals"),
    **dict.fromkeys(("smoothgrad", "expected_gradients", "occlusion", "shapley", "kernel_shap", "lime"), "expensive"),
}


# ---- metrics ----


def top_f1(scores: Tensor, gold: Tensor, k: int) -> float:
    """F1 of the k highest tokens; where a tie straddles the k-th place, its mean over all ways to break the tie."""
    least = scores.topk(k).values[-1]
    above, tied = scores > least, scores == least
    hits = gold[above].sum() + (k - above.sum()) * gold[tied].double().mean()
    return float(2 * hits / (k + gold.sum()))


def interval(values: Tensor, seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of the mean, as a scoreboard has it: bootstrap-t; NaN where the posts allow none."""
    low, high = bootstrap.interval(values[:, None].numpy(), seed=seed)
    return float(low[0]), float(high[0])


# ---- posts ----


@dataclass(frozen=True, eq=False)
class Post:
    """A post's ids, which of them are ranked, and which of those people marked."""

    place: int
    ids: list[int]
    ranked: Tensor  # (ids,)
    gold: Tensor  # (ranked ids,)
    truncated: bool

    @property
    def ranks(self) -> bool:
        """Whether there is something to rank: gold tokens and others."""
        return bool(self.gold.any() and not self.gold.all())


def gold_tokens(offsets: Sequence[tuple[int, int]], marked: set[int]) -> Tensor:
    """Which tokens, from one character to before another, overlap the marked characters."""
    return torch.tensor([any(c in marked for c in range(start, end)) for start, end in offsets], dtype=torch.bool)


def read_posts(count: int | None) -> list[Post]:
    """The first posts with a span, as the model sees them."""
    from transformers import AutoTokenizer

    with open(DATA / "toxic_spans_semeval2021" / "tsd_test.csv", newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["spans"] != "[]"][:count]
    tokenizer = AutoTokenizer.from_pretrained(DATA / "bert-tiny-toxicity")
    texts = [row["text"] for row in rows]
    whole = tokenizer(texts)["input_ids"]
    coded = tokenizer(
        texts, truncation=True, max_length=TOKENS, return_offsets_mapping=True, return_special_tokens_mask=True
    )
    found = []
    for place, (row, ids) in enumerate(zip(rows, coded["input_ids"], strict=True)):
        ranked = ~torch.tensor(coded["special_tokens_mask"][place], dtype=torch.bool)
        gold = gold_tokens(coded["offset_mapping"][place], set(json.loads(row["spans"])))[ranked]
        found.append(Post(place, ids, ranked, gold, len(whole[place]) > TOKENS))
    return found


def gold_share(posts: Sequence[Post]) -> float:
    """The part of a post's tokens that is gold, on average over posts."""
    return sum(float(post.gold.double().mean()) for post in posts) / len(posts)


def batches(posts: Sequence[Post], size: int = BATCH) -> list[list[int]]:
    """Which posts go together: those of similar length."""
    order = sorted(range(len(posts)), key=lambda i: len(posts[i].ids))
    return [order[start : start + size] for start in range(0, len(order), size)]


def padded(posts: Sequence[Post]) -> dict[str, Tensor]:
    ids = nn.utils.rnn.pad_sequence([torch.tensor(post.ids) for post in posts], batch_first=True)  # [PAD] is 0
    mask = nn.utils.rnn.pad_sequence([torch.ones(len(post.ids), dtype=torch.long) for post in posts], batch_first=True)
    return {"input_ids": ids, "attention_mask": mask}


# ---- agreement ----


@dataclass(frozen=True, eq=False)
class Agreement:
    """What one method reached, post by post, in how many seconds, and what it warned of."""

    metrics: list[Tensor]  # as HEADS
    seconds: float
    warned: list[str]


def scored(model: nn.Module, posts: Sequence[Post], title: str, method: str, options: dict[str, Any]) -> list[Tensor]:
    """Each post's token scores, special tokens left out."""
    found: dict[int, Tensor] = {}
    target = model.config.num_labels - 1  # type: ignore[operator, union-attr]
    for places in steps(batches(posts), None, title):
        some = [posts[i] for i in places]
        seeds = [post.place for post in some]  # one seed for all would repeat the same noise in every post
        a = whence.explain(model, padded(some), method=method, target=target, seed=seeds, progress=False, **options)
        for i, post, values in zip(places, some, a.values, strict=True):
            found[i] = values[: len(post.ids)][post.ranked]
    return [found[i] for i in range(len(posts))]


def metrics(posts: Sequence[Post], scores: Sequence[Tensor]) -> list[Tensor]:
    """By metric, one number per post, as HEADS; AUPRC of those only that have something to rank."""
    share = gold_share(posts)
    ap, oracle, average = [], [], []
    for post, values in zip(posts, scores, strict=True):
        if not values.isfinite().all():
            raise ValueError(f"post {post.place} has scores that are not finite")
        if post.ranks:
            ap.append(average_precision(values, post.gold))
        oracle.append(top_f1(values, post.gold, int(post.gold.sum())))
        average.append(top_f1(values, post.gold, max(1, round(share * len(values)))))
    return [torch.tensor(found, dtype=torch.float64) for found in (ap, oracle, average)]


def agreement(model: nn.Module, posts: Sequence[Post], title: str, method: str, options: dict[str, Any]) -> Agreement:
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scores = scored(model, posts, title, method, options)
    seconds = time.perf_counter() - start
    return Agreement(metrics(posts, scores), seconds, [str(one.message) for one in caught])


def runs(names: Sequence[str]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Title, method and options: what is named, or all that is not on request; `random` always, and last."""
    chosen = names or [name for name in whence.methods if name not in ON_REQUEST]
    for name in dict.fromkeys([*(name for name in chosen if name != "random"), "random"]):
        for options in VARIANTS.get(name, [{}]):
            yield ": ".join(filter(None, [name, _said(options)])), name, options


def _said(options: dict[str, Any]) -> str:
    said = {key: " and ".join(value) if isinstance(value, list) else value for key, value in options.items()}
    return ", ".join(f"{key} {value}" for key, value in said.items())


def line(title: str, found: Agreement) -> list[str]:
    cells = []
    for values in found.metrics:
        low, high = interval(values)
        cells.append(f"{float(values.mean()):.3f} [{low:.3f}, {high:.3f}]")
    return [title, *cells, f"{found.seconds:.0f}"]


def called_toxic(model: nn.Module, posts: Sequence[Post]) -> int:
    with torch.no_grad():
        logits = [model(**padded([posts[i] for i in places])).logits for places in batches(posts)]
    return int((torch.cat(logits).argmax(1) == logits[0].shape[1] - 1).sum())


def heading(model: nn.Module, posts: Sequence[Post], unseen: int) -> str:
    cut, full, toxic = sum(p.truncated for p in posts), sum(not p.ranks for p in posts), called_toxic(model, posts)
    return (
        f"Agreement with human spans: {len(posts)} posts with a span ({unseen} more have no gold token); "
        f"{cut} truncated at {TOKENS} tokens,\n{toxic} called toxic by the model. {gold_share(posts):.1%} of a post's "
        f"tokens are gold on average; AUPRC leaves out {full} posts\nin which all are. "
        f"Means over posts, with 95 % intervals (bootstrap-t)."
    )


def report(count: int | None, names: Sequence[str]) -> None:
    from transformers import AutoModelForSequenceClassification

    read = read_posts(count)
    posts = [post for post in read if post.gold.any()]
    model = AutoModelForSequenceClassification.from_pretrained(DATA / "bert-tiny-toxicity").eval()
    rows, remarks = [], []
    for title, method, options in runs(names):
        try:
            found = agreement(model, posts, title, method, options)
        except (whence.WhenceError, ValueError) as error:
            remarks.append(f"{title} did not run: {str(error).splitlines()[0]}")
            continue
        rows.append(line(title, found))
        if found.warned:
            remarks.append(f"{title} warned {len(found.warned)} times, first: {found.warned[0].splitlines()[0]}")
    print(heading(model, posts, len(read) - len(posts)))
    print(table(["method", *HEADS, "seconds"], rows))
    if not names:
        remarks.append("On request: " + ", ".join(f"{name} ({why})" for name, why in ON_REQUEST.items()) + ".")
    for remark in remarks:
        print(remark)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.toxic_spans", description=(__doc__ or "").split(":")[0])
    parser.add_argument("methods", nargs="*", help="names as in `whence methods`; all but the expensive ones")
    parser.add_argument("--posts", type=int, metavar="N", help="only the first N posts with a span")
    given = parser.parse_args()
    unknown = [name for name in given.methods if name not in whence.methods]
    if unknown:
        parser.error(f"there is no method {unknown[0]!r}; there are {', '.join(whence.methods)}")
    torch.set_num_threads(1)
    report(given.posts, given.methods)


if __name__ == "__main__":
    main()
