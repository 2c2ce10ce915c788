"""Why a language model wrote what it wrote: targets, conversations and units, on small models of many families."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import whence
from tests.support.language import DECODERS, EXPERTS, TRANSLATORS, language_model, of_bytes
from tests.support.models import close
from tests.support.slow import mostly_slow
from whence.adapters import chats
from whence.results import text_units
from whence.views.maps import percent

pytestmark = pytest.mark.filterwarnings("ignore::whence.WhenceWarning")
PROMPT, ANSWER, OTHER = "It is hot. Is it?", "Yes it is.", "No"
METHODS = ("gradient", "attnlrp", "leave_one_out")
OTHERS = ("integrated_gradients", "deeplift", "lrp", "generic_attention")
FAMILIES = mostly_slow([*DECODERS, *TRANSLATORS], ["llama"])
TALK = [{"role": "system", "content": "Be kind. Be brief."}, {"role": "user", "content": " Is it hot?\nOr not? "}]


def log_probability(lm: Any, prompt: str, answer: str, part: slice = slice(None)) -> float:
    """The sum of the answer's log-probabilities by the model itself, outside of any explanation."""
    ids, wanted = (lm.tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, answer))
    with torch.no_grad():
        if lm.task == "text2text-generation":
            start = lm.model.config.decoder_start_token_id
            before = torch.tensor([[start, *wanted[:-1]]])
            logits = lm.model(input_ids=torch.tensor([ids]), decoder_input_ids=before).logits[0]
        else:
            logits = lm.model(input_ids=torch.tensor([[*ids, *wanted[:-1]]])).logits[0, len(ids) - 1 :]
    return float(logits.log_softmax(-1)[range(len(wanted)), wanted][part].sum())


def shown(a: whence.Attribution) -> torch.Tensor:
    """The values of the prompt's tokens."""
    return a.values if a.one_input else a.values["input_ids"]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("method", METHODS)
def test_every_form_of_target(name: str, method: str) -> None:
    lm = language_model(name)
    n = len(lm.tokenizer(PROMPT)["input_ids"])
    whole = whence.explain(lm, PROMPT, method=method, target=whence.span(of=ANSWER))
    close(whole.output_value, torch.tensor([log_probability(lm, PROMPT, ANSWER)]), 1e-5)
    part = whence.explain(lm, PROMPT, method=method, target=whence.span("is", of=ANSWER))
    close(part.output_value, torch.tensor([log_probability(lm, PROMPT, ANSWER, slice(7, 9))]), 1e-5)
    other = whence.explain(lm, PROMPT, method=method, target=whence.span(of=OTHER))
    why = whence.explain(lm, PROMPT, method=method, target=whence.contrast(ANSWER, OTHER))
    fine = 1e-4 if name in EXPERTS else 1e-9
    close(why.output_value, whole.output_value - other.output_value, fine)
    assert why.values.shape == (1, n)
    raws = [a.raw if a.one_input else a.raw["input_ids"] for a in (whole, other, why)]
    close(raws[2], raws[0][:, :n] - raws[1][:, :n], fine)
    each = whence.explain(lm, PROMPT, method=method, target=OTHER)
    assert shown(each).shape[:2] == (1, 2)
    for a in (whole, part, other, why, each):
        assert bool(shown(a).isfinite().all())
        assert float(shown(a).abs().max()) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [*DECODERS, *TRANSLATORS])
@pytest.mark.parametrize("method", OTHERS)
def test_other_methods_run(name: str, method: str) -> None:
    lm = language_model(name)
    a = whence.explain(lm, "It is hot.", method=method, target=whence.span(of=OTHER))
    assert bool(shown(a).isfinite().all())
    assert float(shown(a).abs().max()) > 0


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("method", METHODS)
def test_a_row_alone_is_the_row_in_a_batch(name: str, method: str) -> None:
    lm = language_model(name)
    texts = [PROMPT, "Hot?"]
    both = whence.explain(lm, texts, method=method, target=[whence.span(of=ANSWER), whence.span("o", of=OTHER)])
    for row, (text, target) in enumerate(zip(texts, (whence.span(of=ANSWER), whence.span("o", of=OTHER)), strict=True)):
        alone = whence.explain(lm, text, method=method, target=target)
        n = shown(alone).shape[1]
        close(shown(both)[row : row + 1, :n], shown(alone), 1e-5)
        assert float(shown(both)[row, n:].abs().sum()) == 0


def test_the_gradient_of_a_contrast_is_autograds() -> None:
    lm = language_model("llama")
    why = whence.explain(lm, PROMPT, method="gradient", target=whence.contrast(ANSWER, OTHER))
    table, ids = lm.model.get_input_embeddings(), lm.tokenizer(PROMPT)["input_ids"]
    prompt = table(torch.tensor([ids])).detach().requires_grad_()
    scores = []
    for answer in (ANSWER, OTHER):
        wanted = lm.tokenizer(answer)["input_ids"]
        embedded = torch.cat([prompt, table(torch.tensor([wanted[:-1]]))], 1)
        logits = lm.model(inputs_embeds=embedded).logits[0, len(ids) - 1 :]
        scores.append(logits.log_softmax(-1)[range(len(wanted)), wanted].sum())
    expected = torch.autograd.grad(scores[0] - scores[1], prompt)[0]
    close(why.raw, expected, 1e-9)
    close(why.values, expected.norm(dim=-1), 1e-9)


def test_the_default_method_takes_a_contrast() -> None:
    lm = language_model("llama")
    a = whence.explain(lm, PROMPT, target=whence.contrast(ANSWER, OTHER), units="sentences")
    b = whence.explain(lm, PROMPT, method=a.method, target=whence.contrast(ANSWER, OTHER), units="sentences")
    close(a.values, b.values, 1e-9)
    assert "method_chosen" in a.receipt


@pytest.mark.parametrize("method", ["lrp", "rollout", "guided_backprop"])
def test_a_method_that_is_not_linear_in_the_score_says_so(method: str) -> None:
    with pytest.raises(whence.TargetError, match=f"{method} is not linear in the score(.|\n)*whence.span"):
        whence.explain(language_model("llama"), PROMPT, method=method, target=whence.contrast("a", "b"))


def test_parts_of_an_answer() -> None:
    lm = language_model("llama")
    second = whence.explain(lm, PROMPT, method="gradient", target=whence.span("it", occurrence=2, of="it, yes it"))
    close(second.output_value, torch.tensor([log_probability(lm, PROMPT, "it, yes it", slice(8, 10))]), 1e-6)
    euro = whence.explain(lm, PROMPT, method="gradient", target=whence.span("€", of="5€ a"))  # three tokens
    close(euro.output_value, torch.tensor([log_probability(lm, PROMPT, "5€ a", slice(1, 4))]), 1e-6)
    with pytest.raises(whence.TargetError, match=r"the answer has it 1 time.\n  It reads: 'Yes it is.'"):
        whence.explain(lm, PROMPT, method="gradient", target=whence.span("is", occurrence=2, of=ANSWER))
    for wrong in (lambda: whence.span(""), lambda: whence.span("a", of=""), lambda: whence.contrast("a", "")):
        with pytest.raises(whence.TargetError, match="not a text"):
            wrong()
    with pytest.raises(whence.ParameterError, match="occurrence"):
        whence.span("a", occurrence=0)


def test_drawn_answers_depend_on_their_seed_alone() -> None:
    lm = language_model("gpt2")
    drawn = [lm.complete(PROMPT, tokens=6, temperature=1.0, seed=seed).ids for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert lm.complete(PROMPT, tokens=6, top_k=1, seed=4).ids == lm.complete(PROMPT, tokens=6).ids
    assert lm.complete(PROMPT, tokens=6, top_p=1e-6, seed=4).ids == lm.complete(PROMPT, tokens=6).ids
    for wrong in ({"temperature": 0.0}, {"top_k": 0}, {"top_p": 1.5}):
        with pytest.raises(whence.ParameterError, match=next(iter(wrong))):
            lm.complete(PROMPT, **wrong)


# ---- conversations ----


def test_messages_are_found_in_what_the_template_makes_of_them() -> None:
    talk = chats.rendered(of_bytes(), [*TALK, {"role": "assistant", "content": "Yes."}])
    assert [(role, talk[start:end]) for role, start, end in talk.messages] == [
        ("system", "Be kind. Be brief."), ("user", "Is it hot?\nOr not?"),
    ]  # fmt: skip
    assert (talk.answer, talk[-14:]) == ("Yes.", "<|assistant|>\n")


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{% for m in messages %}{{ m.content | upper }}{% endfor %}", "message 0 cannot be told"),
        ("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", "message 0 cannot be told"),
        ("{{ messages[0].content }}", "message 1 cannot be told"),
        ("{{ raise_exception('roles must alternate') }}", "refuses this conversation: roles must alternate"),
        ("", "no chat template"),
    ],
)
def test_a_template_that_changes_messages_is_refused(template: str, told: str) -> None:
    tokenizer = of_bytes()
    tokenizer.chat_template = template
    with pytest.raises(whence.InputError, match=told):
        chats.rendered(tokenizer, TALK)


def test_a_conversation_is_explained_as_the_text_that_it_becomes() -> None:
    lm = language_model("llama")
    a = whence.explain(lm, [*TALK, {"role": "assistant", "content": ANSWER}], method="attnlrp", target=whence.span())
    text = lm.tokenizer.apply_chat_template(TALK, tokenize=False, add_generation_prompt=True)
    b = whence.explain(lm, text, method="attnlrp", target=whence.span(of=ANSWER))
    close(a.values, b.values, 1e-9)
    template = [text[start:end] for (start, end), alone in zip(a.spans[0], a.special[0], strict=True) if alone]
    assert "".join(template).replace("\n", "") == "<|system|><|end|><|user|><|end|><|assistant|>"
    rows = whence.explain(lm, [TALK, TALK[1:]], method="attnlrp", target=whence.span(of=ANSWER))
    assert len(rows) == 2
    close(rows[0].values, a.values, 1e-9)


# ---- units ----


@pytest.mark.parametrize("units", ["words", "sentences", "paragraphs", "lines", "messages", {"rule": "Be kind."}])
@pytest.mark.parametrize("method", ["attnlrp", "gradient"])
def test_sums_over_units_are_sums_over_tokens(units: Any, method: str) -> None:
    lm = language_model("llama")
    tokens = whence.explain(lm, TALK, method=method, target=whence.span(of=ANSWER))
    a = whence.explain(lm, TALK, method=method, target=whence.span(of=ANSWER), units=units)
    close(a.values.sum(), tokens.values.sum(), 1e-9)
    assert [unit for unit, alone in zip(a.units[0], a.special[0], strict=True) if alone] == ["[template]"]
    whole = tokens.merge(units, absolute=True)
    close(whole.values.sum(), tokens.values.abs().sum(), 1e-9)


def test_the_names_of_units() -> None:
    text = "Dr. Who left. “Why?” Nobody knows!\nA line\n\nLast one"
    parts = {units: [part[0] for part in text_units.parts_of(text, units, None)] for units in text_units.NAMES[1:4]}
    assert parts == {
        "sentences": ["Dr. Who left.", "“Why?”", "Nobody knows!", "A line", "Last one"],
        "paragraphs": ["Dr. Who left. “Why?” Nobody knows!\nA line", "Last one"],
        "lines": ["Dr. Who left. “Why?” Nobody knows!", "A line", "Last one"],
    }
    marked = "cafe\u0301, हिन्दी"  # letters with their marks
    assert [part[0] for part in text_units.parts_of(marked, "words", None)] == ["cafe\u0301", ",", "हिन्दी"]
    for wrong, told in (
        ({"a": "line", "b": "A line"}, "overlap"),
        ({"a": "e"}, "is there 3 times"),
        ({"a": (3, 99)}, "51"),
    ):
        with pytest.raises(whence.ParameterError, match=told):
            text_units.parts_of(text, wrong, None)
    with pytest.raises(whence.ParameterError, match="is for conversations"):
        text_units.parts_of(text, "messages", None)


@pytest.mark.parametrize("method", METHODS)
def test_no_units_are_tokens(method: str) -> None:
    lm = language_model("llama")
    a, b = (whence.explain(lm, "Is it?", method=method, target=OTHER, **own) for own in ({}, {"units": None}))
    assert a.units == b.units
    assert torch.equal(a.values, b.values)


@pytest.mark.parametrize("method", ["leave_one_out", "shapley"])
def test_whole_units_are_removed(method: str) -> None:
    """By hand: the score without a sentence, all of whose embeddings are the baseline's."""
    lm = language_model("llama")
    text = "It is hot. So is he. Is it?"
    a = whence.explain(lm, text, method=method, target=whence.span(of=OTHER), units="sentences", baseline=0.0)
    assert a.units[0] == ["It is hot.", "So is he.", "Is it?", "[answer]"]
    table, wanted = lm.model.get_input_embeddings(), lm.tokenizer(OTHER)["input_ids"]
    ids = lm.tokenizer(text)["input_ids"]

    def score(*gone: int) -> float:
        embedded = table(torch.tensor([[*ids, *wanted[:-1]]])).detach().clone()
        for start, end in (((0, 10), (10, 20), (20, 27))[sentence] for sentence in gone):
            embedded[:, start:end] = 0
        with torch.no_grad():
            logits = lm.model(inputs_embeds=embedded).logits[0, len(ids) - 1 :]
        return float(logits.log_softmax(-1)[range(len(wanted)), wanted].sum())

    if method == "leave_one_out":
        expected = [score() - score(sentence) for sentence in range(3)]
    else:
        v = {gone: score(*gone) for gone in ((), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2))}
        expected = []
        for i in range(3):
            j, k = (other for other in range(3) if other != i)
            last = v[tuple(sorted((j, k)))] - v[0, 1, 2]
            middle = sum(v[(other,)] - v[tuple(sorted((other, i)))] for other in (j, k))
            expected.append((v[()] - v[(i,)]) / 3 + middle / 6 + last / 3)
    close(a.values[0, :3], torch.tensor(expected, dtype=torch.float64), 1e-6)
    assert float(a.values[0, 3]) == 0


def test_a_conversation_is_kept_in_a_file(tmp_path: Path) -> None:
    a = whence.explain(language_model("llama"), TALK, method="attnlrp", target=whence.span(of=ANSWER), units="messages")
    a.save(tmp_path / "a.safetensors")
    b = whence.Attribution.load(tmp_path / "a.safetensors")
    assert (b.messages, b.answer, b.units) == (a.messages, a.answer, a.units)


# ---- citations ----


@pytest.mark.parametrize("talk", [False, True])
def test_sources_of_each_sentence_of_an_answer(talk: bool) -> None:
    lm = language_model("llama")
    prompt: Any = (
        [{"role": "user", "content": "It is hot. So is he. Is it?"}] if talk else "It is hot. So is he. Is it?"
    )
    a = whence.explain(lm, prompt, method="attnlrp", target="Yes. It is.")
    found = a.cite(k=2, model=lm)
    assert [citation.sentence for citation in found] == ["Yes.", "It is."]
    by_sentence = a.merge("sentences").values[0]
    for citation, tokens in zip(found, (slice(0, 4), slice(4, 11)), strict=True):
        values = by_sentence[tokens].sum(0)[:3]
        assert [source.value for source in citation.sources] == sorted(values.tolist(), reverse=True)[:2]
        for source in citation.sources:
            assert a.text[0][source.start : source.end] == source.text
            lost = whence.explain(
                lm, prompt, method="leave_one_out", units={"it": (source.start, source.end)},
                target=whence.span(citation.sentence, of="Yes. It is."),
            )  # fmt: skip
            close(torch.tensor(source.drop, dtype=torch.float64), lost.values[0, 0], 1e-9)
    assert "without it: log p" in str(found[0])
    assert a.cite(k=1)[0].sources[0].drop is None
    with pytest.raises(whence.InputError, match="needs one prompt and its answer"):
        whence.explain(lm, "It is hot.", method="attnlrp").cite()


# ---- views and the command line ----


def test_an_answer_over_its_prompt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lm = language_model("llama")
    many = [
        {"role": "system", "content": " ".join(f"Rule {i}." for i in range(12))},
        {"role": "user", "content": "<b>?"},
    ]
    a = whence.explain(lm, many, method="attnlrp", target="Yes. No.", units="sentences")
    values, names = a.values[0, :4].sum(0), a.units[0]
    with torch.no_grad():  # one rule carries all, so that the others fold
        a.values[0, :, [i for i, name in enumerate(names) if name.startswith("Rule") and name != "Rule 3."]] *= 1e-6
        a.values[0, :4, names.index("Rule 3.")] += 5 * float(values.abs().max())
    page = a.to_html()
    assert "<script" not in page
    assert "&lt;b&gt;?" in page
    assert page.count('type="radio"') == 2 + 1 + 8  # sentences, all of it, tokens
    assert page.count(" checked ") == 1
    assert "… 8 that carry little" in page
    sums = a.values[0, :4].sum(0)
    shares = sums[:13] / sums[:13].abs().sum()
    first = page[page.index('class="panel p0"') : page.index('class="panel p1"')]
    assert first.count('class="blk"') == 2
    assert f"{float(sums[:12].sum()):+.4g}" in first
    assert f"+{100 * float(shares[:12].sum()):.0f} %" in first
    answer = float(sums[names.index("[answer]")])
    own = abs(answer) / (abs(answer) + float(sums[:13].abs().sum()))
    assert f"the answer so far {answer:+.4g}".replace("-", "−") in first
    assert f"{percent(own)} rests on the answer itself" in first
    a.show()
    printed = capsys.readouterr().out.splitlines()
    first = printed.index("Yes.")
    assert printed[first + 1].endswith("  Rule 3.")
    assert "No." in printed[first + 2 :]


def test_an_answer_that_rests_on_itself_and_one_against_another() -> None:
    lm = language_model("llama")
    a = whence.explain(lm, PROMPT, method="attnlrp", target="Yes. No.", units="sentences")
    with torch.no_grad():
        a.values[0, :, a.units[0].index("[answer]")] = 9 * a.values[0, :, :2].abs().sum(1)
    page = a.to_html()
    assert "90.0 % rests on the answer itself. Drawn is how the other 10.0 % is spread over the prompt." in page
    why = whence.explain(lm, PROMPT, method="attnlrp", target=whence.contrast("Yes", "No"), units="sentences").to_html()
    assert "Why “Yes” rather than “No”?" in why
    assert "for “No”</span>" in why
    assert 'type="radio"' not in why


def test_what_the_model_does_stands_beside_what_the_method_says(tmp_path: Path) -> None:
    lm = language_model("llama")
    a = whence.explain(lm, PROMPT, method="attnlrp", target="Yes. No.", units="sentences").tried(lm, k=2)
    told, wanted = a.receipt["alternatives"], lm.tokenizer("Yes. No.")["input_ids"]
    assert sum(math.log(one["probability"]) for one in told) == pytest.approx(
        log_probability(lm, PROMPT, "Yes. No."), abs=1e-6
    )
    ids = lm.tokenizer(PROMPT)["input_ids"]
    with torch.no_grad():
        likeliest = int(lm.model(input_ids=torch.tensor([[*ids, *wanted[:3]]])).logits[0, -1].argmax())
    names = [name for name, _ in told[3]["others"]]
    assert likeliest == wanted[3] or names[0] == lm.tokenizer.convert_ids_to_tokens(likeliest).replace("Ġ", " ")
    drops = [[source.drop for source in citation.sources] for citation in a.cite(2, model=lm)]
    assert [[one["drop"] for one in sources] for sources in a.receipt["sources"]] == drops
    assert [[source.drop for source in citation.sources] for citation in a.cite(2)] == drops  # known by now
    a.save(tmp_path / "a.safetensors")
    again = whence.Attribution.load(tmp_path / "a.safetensors")
    assert again.to_html() == a.to_html()
    speaking = [source for citation in a.cite(2) for source in citation.sources if source.value > 0]
    assert a.to_html().count("without it: log p") == len(speaking) > 0


def test_a_conversation_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from whence.cli.arguments import TEXT_UNITS
    from whence.cli.main import main

    assert TEXT_UNITS == text_units.NAMES
    lm, folder, talk = language_model("llama"), tmp_path / "model", tmp_path / "talk.json"
    lm.model.float().save_pretrained(folder)
    lm.tokenizer.save_pretrained(folder)
    talk.write_text(json.dumps([*TALK, {"role": "assistant", "content": "Yes. It is."}]))
    asked = ["explain", "--model", str(folder), "--chat", str(talk), "--units", "sentences"]
    assert main([*asked, "--method", "attnlrp", "--out", str(tmp_path / "a.html")]) == 0
    page = (tmp_path / "a.html").read_text()
    assert all(f">{sentence}</label>" in page for sentence in ("Yes.", "It is."))
    assert "What else could stand here" in page
    assert "without it: log p" in page
    assert main([*asked, "--method", "leave_one_out"]) == 0
    assert "Be kind." in capsys.readouterr().out
    talk.write_text(json.dumps(TALK))  # the model writes the answer
    assert main([*asked, "--method", "gradient", "--json"]) == 0
    assert "Be brief." in capsys.readouterr().out
    talk.write_text('{"role": "user"}')
    assert main([*asked, "--method", "gradient"]) != 0
    assert "is not a list of" in capsys.readouterr().err
