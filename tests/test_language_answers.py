"""Answers as they stand after their prompt, with their own tokens; both texts of encoders and decoders by unit."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import whence
from tests.support.language import TRANSLATORS, language_model, of_bytes
from tests.support.models import close
from tests.support.slow import mostly_slow
from whence.adapters import chats
from whence.adapters.decoding import said
from whence.views.maps import percent

pytestmark = pytest.mark.filterwarnings("ignore::whence.WhenceWarning")
PROMPT, ANSWER, OTHER = "It is hot. Is it?", "Yes it is.", "No"
METHODS = ("gradient", "attnlrp", "leave_one_out")
TALK = [{"role": "system", "content": "Be kind. Be brief."}, {"role": "user", "content": " Is it hot?\nOr not? "}]


def of_pieces() -> Any:
    """A tokenizer that puts a space before every text, as SentencePiece's do, and marks the beginning of a text."""
    import transformers as hf
    from tokenizers import Tokenizer, decoders, models, normalizers, processors

    letters = [*"▁abcdefghijklmnopqrstuvwxyzAEINOPWRSTYL.,?!'\n[]/", "▁▁"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    names = ["<unk>", "<s>", "</s>", *bytes_, *letters]
    merges = [("▁", "▁")]
    own = Tokenizer(models.BPE({n: i for i, n in enumerate(names)}, merges, unk_token="<unk>", byte_fallback=True))
    own.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    own.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                     decoders.Strip(" ", 1, 0)])  # fmt: skip
    own.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    made = hf.PreTrainedTokenizerFast(
        tokenizer_object=own, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="</s>"
    )
    made.chat_template = (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[I] {{ m.content }} [/I]"
        "{% else %} {{ m.content.strip() }} {{ eos_token }}{% endif %}{% endfor %}"
    )
    return made


def of_llama(tokenizer: Any) -> Any:
    import transformers as hf

    torch.manual_seed(4)
    config = hf.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=256, bos_token_id=1, eos_token_id=2, initializer_range=0.3,
    )  # fmt: skip
    return whence.wrap(hf.LlamaForCausalLM(config).double().eval(), tokenizer)


@pytest.mark.parametrize(("answer", "labels"), [(" Yes", [" ", "Y", "e", "s"]), ("Yes", ["Y", "e", "s"])])
def test_no_space_is_put_between_a_prompt_and_its_answer(answer: str, labels: list[str]) -> None:
    lm = of_llama(of_pieces())
    a = whence.explain(lm, "Is it", method="gradient", target=answer)
    assert a.labels == [labels]
    assert (a.answer or [])[0][0] == answer
    ids = lm.tokenizer("Is it")["input_ids"]
    both = lm.tokenizer("Is it" + answer)["input_ids"]
    with torch.no_grad():
        logits = lm.model(input_ids=torch.tensor([both[:-1]])).logits[0, len(ids) - 1 :].log_softmax(-1)
    expected = logits[range(len(both) - len(ids)), both[len(ids) :]].sum()
    whole = whence.explain(lm, "Is it", method="gradient", target=whence.span(of=answer))
    close(whole.output_value, expected[None], 1e-9)


def test_the_answer_of_a_conversation_stands_as_its_template_writes_it() -> None:
    tokenizer = of_pieces()
    talk = [{"role": "user", "content": "Is it?"}, {"role": "assistant", "content": "Yes."}]
    assert chats.rendered(tokenizer, talk).answer == " Yes."
    a = whence.explain(of_llama(tokenizer), talk, method="gradient")
    assert "".join((a.labels or [])[0]) == " Yes."


@pytest.mark.parametrize(
    ("between", "told", "answer"),
    [
        ("{{ m.role }}:\n", "assistant:\n", "Yes."),
        ("{{ m.role }}: ", "assistant:", " Yes."),
        ("{{ m.role }}:{% if m.role == 'assistant' %}[]\n{% endif %}", "assistant:[]\n", "Yes."),
        (" ", "", " Yes."),
    ],
)
def test_what_the_template_writes_before_an_answer_stands_before_it(between: str, told: str, answer: str) -> None:
    """A role that is no generation prompt, empty thoughts: also where the answer begins as they do."""
    tokenizer = of_bytes()
    tokenizer.chat_template = f"{{% for m in messages %}}{between}{{{{ m.content }}}}/\n{{% endfor %}}"
    for content in ("Yes.", "as"):
        talk = [{"role": "user", "content": "Is it?"}, {"role": "assistant", "content": content}]
        asked = chats.rendered(tokenizer, talk)
        assert asked.answer == answer.replace("Yes.", content)
        assert asked.endswith("Is it?/\n" + told)
        assert tokenizer.apply_chat_template(talk, tokenize=False) == f"{asked}{asked.answer}/\n"
        assert [asked[start:end] for _, start, end in asked.messages] == ["Is it?"]


@pytest.mark.parametrize("prompt", ["国家。はい！", "😀😀😀", "Is it"])
@pytest.mark.parametrize("answer", ["是。不。", "日本。 no😀.", " 是"])
def test_an_answer_in_bytes_is_read_as_it_was_written(prompt: str, answer: str) -> None:
    """Its tokens end where their characters do, in order; what stands before may be bytes as well."""
    tokenizer = of_pieces()
    before = tokenizer(prompt)["input_ids"]
    ids = tokenizer(prompt + answer)["input_ids"][len(before) :]
    text, ends = said(tokenizer, before, ids)
    assert text == answer
    assert ends == sorted(ends)
    assert ends[-1] == len(answer)
    assert set(ends) >= set(range(2, len(answer)))


def test_sentences_of_an_answer_in_bytes_have_their_own_tokens() -> None:
    lm, answer = of_llama(of_pieces()), "是。不。"
    a = whence.explain(lm, "Is it? Or not.", method="attnlrp", target=answer)
    cited = a.cite(k=1)
    assert [one.sentence for one in cited] == ["是。", "不。"]
    parts = a.merge("sentences").values[0]
    for one, tokens in zip(cited, (slice(0, 6), slice(6, 12)), strict=True):
        assert one.sources[0].value == pytest.approx(float(parts[tokens].sum(0)[:2].max()), rel=1e-9)


def test_a_prompt_without_a_text_of_its_own_has_no_sources() -> None:
    lm = language_model("llama")
    talk = [{"role": "user", "content": ""}, {"role": "assistant", "content": "Yes."}]
    (cited,) = whence.explain(lm, talk, method="attnlrp", target=whence.span()).cite(model=lm)
    assert (cited.sentence, cited.sources) == ("Yes.", ())


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_rows_of_a_contrast_are_what_they_are_alone(name: str) -> None:
    lm, rows, pair = language_model(name), ["It is hot. Is it?", "A"], (ANSWER, OTHER)
    for units in (None, "sentences"):
        some = whence.explain(lm, rows, method="attnlrp", target=whence.contrast(*pair), units=units)
        for row, own in zip(rows, some, strict=True):
            alone = whence.explain(lm, row, method="attnlrp", target=whence.contrast(*pair), units=units)
            assert (own.units, own.special) == (alone.units, alone.special)
            close(own.values, alone.values, 1e-9)
            parts = [whence.explain(lm, row, method="attnlrp", target=whence.span(of=answer)) for answer in pair]
            given = [sum(float(values.sum()) for values in part.by_name().values()) for part in parts]
            (rests,) = own.receipt["on_the_answers"]
            assert rests == pytest.approx(alone.receipt["on_the_answers"][0], abs=1e-9)
            assert float(own.values.sum()) + rests[0] - rests[1] == pytest.approx(given[0] - given[1], abs=1e-9)


def test_the_receipt_of_a_contrast_has_one_fact_per_row() -> None:
    lm, rows, pair = language_model("llama"), ["It is hot. Is it?", "A"], (ANSWER, OTHER)
    asked: dict[str, Any] = {"method": "integrated_gradients", "tolerance": 0.3, "baseline": "pad"}
    some = whence.explain(lm, rows, target=whence.contrast(*pair), **asked)
    parts = [whence.explain(lm, rows, target=whence.span(of=answer), **asked) for answer in pair]
    first, second = (part.receipt for part in parts)
    for name, of_both in {
        "converged": min,
        "tolerance_reached": max,
        "gradient_evaluations": lambda ab: sum(ab),
    }.items():
        assert some.receipt[name] == [of_both(ab) for ab in zip(first[name], second[name], strict=True)]
        assert some[1].receipt[name] == some.receipt[name][1:]


def test_an_answer_that_ends_at_once_is_its_end() -> None:
    lm = language_model("llama")
    with torch.no_grad():
        first = lm.complete(PROMPT, tokens=1).ids[0]
        lm.model.lm_head.weight[2] = 3 * lm.model.lm_head.weight[first]
    answer = lm.complete(PROMPT, tokens=5)
    assert answer.ids == [2]
    a = whence.explain(lm, PROMPT, method="attnlrp", target=whence.span())
    assert a.labels == ["log p(</s>)"]
    assert float(a.values.abs().max()) > 0


@pytest.mark.parametrize("whole", [False, True])
def test_a_drawn_answer_keeps_its_tokens(whole: bool) -> None:
    """Its text may be other tokens, and in a conversation nothing stands before the template's own beginning."""
    tokenizer = of_pieces()
    lm, talk = of_llama(tokenizer), [{"role": "user", "content": "Is it hot? Or not?"}]
    answer = lm.complete(talk, tokens=6, temperature=2.0, seed=1)
    ids = tokenizer(str(chats.rendered(tokenizer, talk)), add_special_tokens=False)["input_ids"]
    assert tokenizer(str(answer), add_special_tokens=False)["input_ids"] != answer.ids
    with torch.no_grad():
        logits = lm.model(input_ids=torch.tensor([[*ids, *answer.ids[:-1]]])).logits[0, len(ids) - 1 :].log_softmax(-1)
    own = logits[range(6), answer.ids]
    target: Any = whence.span(of=answer) if whole else answer
    a = whence.explain(lm, talk, method="attnlrp", target=target).tried(lm)
    close(torch.tensor([one["probability"] for one in a.receipt["alternatives"]]), own.exp().float(), 1e-6)
    removed = whence.explain(lm, talk, method="leave_one_out", target=whence.span(of=answer), units="sentences")
    by_name = dict(zip((removed.units or [[]])[0], removed.values[0].tolist(), strict=True))
    found = {one.text: one.drop for citation in a.cite(k=2) for one in citation.sources}
    assert found == pytest.approx({name: by_name[name] for name in ("Is it hot?", "Or not?")}, abs=1e-6)


def test_the_sources_of_a_contrast_are_tried_on_the_contrast() -> None:
    lm, why = language_model("llama"), whence.contrast(ANSWER, OTHER)
    a = whence.explain(lm, PROMPT, method="attnlrp", target=why)
    lost = whence.explain(lm, PROMPT, method="leave_one_out", target=why, units="sentences")
    by_name = dict(zip((lost.units or [[]])[0], lost.values[0].tolist(), strict=True))
    for source in a.cite(k=2, model=lm)[0].sources:
        assert source.drop == pytest.approx(by_name[source.text], abs=1e-9)


@pytest.mark.parametrize("target", [None, 40, whence.span()])
def test_no_method_removes_what_the_template_wrote(target: Any) -> None:
    talk = [*TALK, {"role": "assistant", "content": "No."}]
    a = whence.explain(language_model("llama"), talk, method="leave_one_out", target=target)
    special = torch.tensor((a.special or [])[0])
    values = a.values.abs().flatten(0, -2).sum(0)
    assert float(values[special].max()) == 0 < float(values[~special].max())


def test_every_token_of_a_whole_answer_shows_what_else_could_stand_there() -> None:
    lm = language_model("llama")
    a = whence.explain(lm, PROMPT, method="attnlrp", target=whence.span(of=ANSWER), units="sentences").tried(lm)
    page = a.to_html()
    told = a.receipt["alternatives"]
    assert "".join(one["token"] for one in told) == ANSWER
    assert page.count("What else could stand for") >= len(ANSWER)
    for one in told:
        for _, p in one["others"]:
            assert percent(p).replace("<", "&lt;") in page
    assert page.count('type="radio"') == 1 + len(ANSWER)
    assert "<script" not in page


# ---- encoders and decoders ----


@pytest.mark.parametrize("name", mostly_slow(TRANSLATORS, ["t5"]))
@pytest.mark.parametrize("method", METHODS)
def test_units_of_encoders_and_decoders(name: str, method: str) -> None:
    lm, both = language_model(name), {"input_ids": "sentences", "decoder_input_ids": "words"}
    for target in (whence.span(of=ANSWER), OTHER):
        tokens = whence.explain(lm, PROMPT, method=method, target=target)
        a = whence.explain(lm, PROMPT, method=method, target=target, units="sentences")
        b = whence.explain(lm, PROMPT, method=method, target=target, units=both)
        assert a.by_name("units")["input_ids"] == [["It is hot.", "Is it?"]]
        assert a.by_name("units")["decoder_input_ids"] == [["[answer]"]]
        assert b.by_name("units")["decoder_input_ids"][0][-1] == "[start]"
        for one in (a, b) if method != "leave_one_out" else ():
            for key, values in tokens.by_name().items():
                close(one.by_name()[key].sum(-1), values.sum(-1), 1e-9)
        alone = whence.explain(lm, PROMPT, method=method, target=target, units="sentences", wrt="input_ids")
        close(alone.values, a.values["input_ids"], 1e-9)
    why = whence.explain(lm, PROMPT, method=method, target=whence.contrast(ANSWER, OTHER), units=both)
    assert why.units == [["It is hot.", "Is it?"]]


def test_sentences_of_a_source_are_removed_as_a_whole() -> None:
    lm = language_model("t5")
    a = whence.explain(lm, PROMPT, method="leave_one_out", target=whence.span(of=ANSWER), units="sentences")
    ids, wanted = (lm.tokenizer(text)["input_ids"] for text in (PROMPT, ANSWER))
    embedded = lm.model.get_input_embeddings()(torch.tensor([ids])).detach()
    before = torch.tensor([[lm.model.config.decoder_start_token_id, *wanted[:-1]]])

    def score(values: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            logits = lm.model(inputs_embeds=values, decoder_input_ids=before).logits[0]
        return logits.log_softmax(-1)[range(len(wanted)), wanted].sum()

    first = len("It is hot.")
    gone = [torch.cat([0 * embedded[:, :first], embedded[:, first:]], 1),
            torch.cat([embedded[:, :first], 0 * embedded[:, first:]], 1)]  # fmt: skip
    close(a.values["input_ids"][0], torch.stack([score(embedded) - score(one) for one in gone]), 1e-9)
    assert float(a.values["decoder_input_ids"].abs().max()) == 0


def test_the_sources_of_a_translation() -> None:
    lm = language_model("t5")
    asked: dict[str, Any] = {"target": whence.span(of=ANSWER), "units": "sentences", "wrt": "input_ids"}
    (cited,) = whence.explain(lm, PROMPT, method="attnlrp", **asked).cite(k=2, model=lm)
    lost = whence.explain(lm, PROMPT, method="leave_one_out", **asked)
    expected = dict(zip(lost.units[0], lost.values[0].tolist(), strict=True))
    assert {source.text: source.drop for source in cited.sources} == pytest.approx(expected)
    both = whence.explain(lm, PROMPT, method="attnlrp", target=whence.span(of=ANSWER))
    with pytest.raises(whence.WhenceError, match=r'(?s)text that the encoder reads.*wrt="input_ids"'):
        both.cite()


def test_units_of_both_sides_are_drawn_with_their_names_on_one_scale() -> None:
    pytest.importorskip("matplotlib")
    units = {"input_ids": "sentences", "decoder_input_ids": "words"}
    a = whence.explain(
        language_model("t5"), "It is hot. Paris is large.", method="attnlrp", target=whence.span(of="Yes."), units=units
    )
    page, named = a.to_html(), [unit for names in a.units.values() for unit in names[0]]
    assert all(unit in page for unit in named)
    largest = max(float(value.abs().max()) for value in a.values.values())
    wide = [float(width) for width in re.findall(r"width:([\d.]+)%", page)]
    shares = sorted(abs(v) / largest * 50 for value in a.values.values() for v in value.flatten().tolist())
    assert all(any(width == pytest.approx(share, abs=0.1) for width in wide) for share in shares)
    ticks = [tick.get_text() for tick in a.plot().get_yticklabels()]
    assert len(ticks) == len(named)
    assert ticks[0] == "source: It is hot."
