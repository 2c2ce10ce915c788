"""Language models in `evaluate` and `recommend`: teacher-forced on the original answer, without parts of the prompt."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import whence
from tests.support.language import language_model
from whence.evaluation.writing import writes

pytestmark = pytest.mark.filterwarnings("ignore::whence.WhenceWarning")
PROMPT, ANSWER = "It is hot. So is he. Is it? Nobody knows.", "Yes."
SENTENCES = [(0, 10), (10, 20), (20, 27), (27, 41)]  # as tokens: a space belongs to what follows


def log_probability(lm: Any, prompt: str, answer: str) -> float:
    """By the model itself, one row at a time."""
    ids, wanted = (lm.tokenizer(text)["input_ids"] for text in (prompt, answer))
    with torch.no_grad():
        logits = lm.model(input_ids=torch.tensor([[*ids, *wanted[:-1]]])).logits[0, len(ids) - 1 :]
    return float(logits.log_softmax(-1)[range(len(wanted)), wanted].sum())


def without(prompt: str, *gone: int) -> str:
    return "".join(prompt[a:b] for n, (a, b) in enumerate(SENTENCES) if n not in gone)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3"])
def test_the_score_is_the_answers_mean_probability(name: str) -> None:
    """Also in a batch of prompts and answers of other lengths, padded on the right."""
    lm = language_model(name)
    rows = [(PROMPT, ANSWER), ("Hot?", "No, it is not."), ("Is it?", "A")]
    encoded = [[lm.tokenizer(text)["input_ids"] for text in row] for row in rows]
    longest = [max(len(row[side]) for row in encoded) for side in (0, 1)]
    ids = torch.tensor([[*p, *[0] * (longest[0] - len(p))] for p, _ in encoded])
    mask = torch.tensor([[1] * len(p) + [0] * (longest[0] - len(p)) for p, _ in encoded])
    answers = torch.tensor([[*(n + 1 for n in a), *[0] * (longest[1] - len(a))] for _, a in encoded])
    with torch.no_grad():
        found = writes(lm.model)(ids, mask, answers)[:, 0]
    for (prompt, answer), (_, wanted), logit in zip(rows, encoded, found, strict=True):
        mean = log_probability(lm, prompt, answer) / len(wanted)
        assert float(torch.nn.functional.logsigmoid(logit)) == pytest.approx(mean, abs=1e-6)


def test_source_ablation_by_hand() -> None:
    lm = language_model("llama")
    board = whence.evaluate(
        lm, [(PROMPT, ANSWER), ("Hot?", "No")], controls=False, metrics={"source_ablation": {"k": (1, 2)}},
        methods={"attnlrp": None, "leave_one_out": {"units": "sentences"}},
    )  # fmt: skip
    whole = log_probability(lm, PROMPT, ANSWER)
    for method, how in (("attnlrp", {}), ("leave_one_out", {})):
        a = whence.explain(
            lm, PROMPT, method=method, target=whence.span(of=ANSWER), units="sentences", **how
        )  # fmt: skip
        order = a.values[0, :4].argsort(descending=True).tolist()
        drops = [whole - log_probability(lm, without(PROMPT, *order[:k]), ANSWER) for k in (1, 2)]
        found = board.results[method, "source_ablation"][0]
        assert list(found.parts.values()) == pytest.approx(drops, abs=1e-5)
        assert found.value == pytest.approx(sum(drops) / 2, abs=1e-5)
        assert board.results[method, "source_ablation"][1].value == 0  # one source: nothing else would be left


def test_comprehensiveness_and_sufficiency_of_an_answer() -> None:
    """p is the geometric mean over the answer's tokens; half of the prompt's tokens are deleted, or kept."""
    lm = language_model("llama")
    board = whence.evaluate(
        lm, [(PROMPT, ANSWER)], methods=["attnlrp"], controls=False,
        metrics={"comprehensiveness": {"k": 50}, "sufficiency": {"k": 50}, "log_odds": {"k": 50, "operator": "delete"}},
    )  # fmt: skip
    values = whence.explain(lm, PROMPT, method="attnlrp", target=whence.span(of=ANSWER)).values[0, : len(PROMPT)]
    top = set(values.argsort(descending=True)[: math.ceil(len(PROMPT) / 2)].tolist())

    def p(keep: Any) -> float:
        kept = "".join(letter for i, letter in enumerate(PROMPT) if keep(i))
        return math.exp(log_probability(lm, kept, ANSWER) / len(ANSWER))

    whole, less, only = p(lambda i: True), p(lambda i: i not in top), p(lambda i: i in top)
    found = {name: board.results["attnlrp", name][0].value for name in board.metrics}
    assert found["comprehensiveness"] == pytest.approx(whole - less, abs=1e-6)
    assert found["sufficiency"] == pytest.approx(whole - only, abs=1e-6)
    assert found["log_odds"] == pytest.approx(math.log(less) - math.log(whole), abs=1e-5)


def test_a_conversation_keeps_its_template_and_its_answer() -> None:
    lm = language_model("llama")
    talk = [{"role": "user", "content": "It is hot. Is it?"}, {"role": "assistant", "content": ANSWER}]
    other = [{"role": "user", "content": "It is hot. Is it?"}, {"role": "assistant", "content": "No"}]
    board = whence.evaluate(
        lm, [talk, other], methods=["gradient"], metrics={"source_ablation": {"k": 1}}, controls=False
    )
    assert not board.failures
    first, second = (board.results["gradient", "source_ablation"][row].value for row in (0, 1))
    assert first != second
    a = whence.explain(lm, talk, method="gradient", target=whence.span(), units="sentences")
    text = lm.tokenizer.apply_chat_template(talk[:1], tokenize=False, add_generation_prompt=True)
    gone = "It is hot." if a.values[0, 0] > a.values[0, 1] else " Is it?"
    drop = log_probability(lm, text, ANSWER) - log_probability(lm, text.replace(gone, ""), ANSWER)
    assert first == pytest.approx(drop, abs=1e-5)


def test_the_needle_ranks_methods() -> None:
    """What is certain: methods that find the needle lose more by its removal than a random order does."""
    from whence.zoo import needles

    lm = whence.load("zoo:needle")
    made = [needles.needle(number, tokens=100, facts=3, decoys=1) for number in range(8)]
    board = whence.evaluate(
        lm, [(one.prompt, one.answer) for one in made], metrics={"source_ablation": {"k": 1}},
        methods={"attnlrp": None, "context_cite": {"units": "sentences"}},
    )  # fmt: skip
    for method in ("attnlrp", "context_cite"):
        assert board[method, "source_ablation"].value > board["random", "source_ablation"].value + 1
    advice = whence.recommend(lm, [one.prompt for one in made], methods=["attnlrp", "gradient"], rows=8, seconds=60)
    assert {choice.method for choice in advice.ranking} == {"attnlrp", "gradient"}


def test_rows_that_are_no_prompts_are_refused() -> None:
    with pytest.raises(whence.InputError, match="A row of a language model is int"):
        whence.evaluate(language_model("llama"), [3], methods=["gradient"], metrics=["comprehensiveness"])
    with pytest.raises(whence.ParameterError, match="at least 1"):
        whence.evaluate(
            language_model("llama"), [(PROMPT, ANSWER)], methods=["gradient"], metrics={"source_ablation": {"k": 0}}
        )
