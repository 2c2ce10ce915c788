"""From texts and images to explanations: every adapter on a small model that was saved and loaded again."""

from __future__ import annotations

import json
import logging
import unicodedata
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import whence
from tests.support.folders import WORDS, built, hf, stored, wordpiece
from tests.support.hf import FAMILIES, SMALL
from tests.support.models import close
from whence.adapters.images import pixels
from whence.adapters.spans import words_in
from whence.adapters.tokens import tokens_of, tokens_of_all
from whence.errors import FileError, InputError, ModelError, ParameterError, TargetError

pytestmark = pytest.mark.filterwarnings("ignore:.*torchvision.*", "ignore::FutureWarning")
TEXTS = ["a clever piece of cinema", "dull", "it is not, I think, that bad"]


def bytes_of(folder: Path) -> Any:
    """A byte-level tokenizer, as GPT-2's."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        [WORDS], trainers.BpeTrainer(vocab_size=300, special_tokens=["<end>"], initial_alphabet=alphabet)
    )
    return hf.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>", bos_token="<end>")


@pytest.fixture
def bert(tmp_path: Path) -> Callable[..., Any]:
    def make(head: str, **options: Any) -> Any:
        tokenizer = wordpiece(tmp_path / "words")
        names = {"id2label": {0: "bad", 1: "fine", 2: "good"}, "label2id": {"bad": 0, "fine": 1, "good": 2}}
        model = built(
            f"BertFor{head}", "BertConfig", len(tokenizer), **(names if "Classification" in head else {"num_labels": 2})
        )
        return whence.load(stored(tmp_path / head, model, tokenizer), **options)

    return make


# ---- text ----


@pytest.mark.parametrize("method", ["input_x_gradient", "lrp", "attcat", "deeplift", "leave_one_out"])
def test_texts_in_a_batch_are_the_bare_model_on_the_same_ids(bert: Any, method: str) -> None:
    clf = bert("SequenceClassification")
    clf.model.double()
    a = whence.explain(clf, TEXTS, method=method, target="good")
    assert a.target.tolist() == [2, 2, 2]
    assert a.labels == ["good"] * 3
    for row, text in enumerate(TEXTS):
        ids = dict(clf.tokenizer(text, return_tensors="pt"))
        bare = whence.explain(clf.model, ids, method=method, target=2)
        close(a[row].values, bare.values, 1e-9)
        assert a[row].units == [clf.tokenizer.convert_ids_to_tokens(ids["input_ids"][0].tolist())]
    assert whence.explain(clf, TEXTS[0], method=method).values.shape == (1, 7)


def test_each_row_has_its_own_class_and_seed(bert: Any) -> None:
    clf = bert("SequenceClassification")
    options = {"method": "smoothgrad", "of": "input_x_gradient", "samples": 4}
    a = whence.explain(clf, TEXTS, target=["good", 0, "fine"], seed=[1, 2, 3], batch_size=2, **options)
    assert a.target.tolist() == [2, 0, 1]
    for row, (target, seed) in enumerate([(2, 1), (0, 2), (1, 3)]):
        close(a[row].raw, whence.explain(clf, TEXTS[row], target=target, seed=seed, **options).raw, 1e-4)


def test_pairs(bert: Any) -> None:
    clf = bert("SequenceClassification")
    a = whence.explain(clf, ("what was it", "a very clever film"), method="lrp")
    assert a.text == [("what was it", "a very clever film")]
    assert a.segments == [[None, 0, 0, 0, None, 1, 1, 1, 1, None]]
    pieces = [
        a.text[0][segment][slice(*span)]
        for segment, span in zip(a.segments[0], a.spans[0], strict=True)
        if segment is not None
    ]
    assert pieces == ["what", "was", "it", "a", "very", "clever", "film"]
    merged = whence.explain(clf, [("it", "cinematic, dull"), ("dull", "film")], method="lrp", target=0).merge_words()
    assert merged.segments == [[None, 0, None, 1, 1, 1, None], [None, 0, None, 1, None, None, None]]
    assert merged[1].segments == [[None, 0, None, 1, None]]


def test_words(bert: Any) -> None:
    clf = bert("SequenceClassification")
    a = whence.explain(clf, ["cinematic, dull", "dull"], method="lrp", target=0)
    assert a.units[0][1:5] == ["cinema", "##t", "##i", "##c"]
    merged = a.merge_words()
    assert merged[0].units == [["[CLS]", "cinematic", ",", "dull", "[SEP]"]]
    assert merged[0].spans == [[(0, 0), (0, 9), (9, 10), (11, 15), (0, 0)]]
    assert merged[1].units == [["[CLS]", "dull", "[SEP]"]]
    close(merged.values.sum(1), a.values.sum(1), 1e-6)
    assert merged[0].special == [[True, False, False, False, True]]


def test_words_are_removed_together(bert: Any) -> None:
    clf = bert("SequenceClassification")
    a = whence.explain(
        clf, ["cinematic, dull", "dull"], method="leave_one_out", units="words", target=0, baseline="mask"
    )
    assert len({float(v) for v in a[0].values[0, 1:5]}) == 1  # one word's pieces have one value
    assert float(a[0].values[0, 0]) == 0  # special tokens stay
    alone = whence.explain(clf, "dull", method="leave_one_out", units="words", target=0, baseline="mask")
    close(a[1].values, alone.values, 1e-5)
    with pytest.raises(InputError, match="a bare model does not know"):
        whence.explain(nn.Linear(2, 2), torch.ones(1, 2), method="leave_one_out", units="words")


def test_tags_questions_and_masks(bert: Any) -> None:
    tagger = bert("TokenClassification")
    a = whence.explain(tagger, TEXTS[0], method="input_x_gradient", target=(2, "good"))
    ids = dict(tagger.tokenizer(TEXTS[0], return_tensors="pt"))
    close(a.values, whence.explain(tagger.model, ids, method="input_x_gradient", target=(2, 2)).values, 1e-5)

    reader = bert("QuestionAnswering")
    pair = ("what was it", "a very clever film")
    ids = dict(reader.tokenizer(*pair, return_tensors="pt"))
    for side in ("start", "end"):
        logits = reader.model(**ids)[f"{side}_logits"]
        a = whence.explain(reader, pair, method="input_x_gradient", target=side)
        assert a.target.tolist() == logits.argmax(1).tolist()
        bare = whence.explain(
            reader.model, ids, method="input_x_gradient", target=lambda out, s=side: out[f"{s}_logits"].amax(1)
        )
        close(a.values, bare.values, 1e-5)
    with pytest.raises(InputError, match="question, context"):
        whence.explain(reader, "what", method="gradient")

    filler = bert("MaskedLM")
    a = whence.explain(filler, ["a [MASK] piece", "[MASK]"], method="input_x_gradient", target="clever")
    token = filler.tokenizer.convert_tokens_to_ids("clever")
    assert a.target == [(2, token), (1, token)]
    assert a.labels == ["clever", "clever"]
    with pytest.raises(InputError, match="0 masks"):
        whence.explain(filler, "a piece", method="gradient")
    with pytest.raises(TargetError, match="tokens of this model"):
        whence.explain(filler, "a [MASK]", method="gradient", target="cleverest")


def test_long_texts(bert: Any) -> None:
    text = " ".join(["a clever piece of cinema"] * 8)
    with pytest.raises(InputError, match="has 42 tokens, but the model takes 24.*\n.*truncate.*window"):
        whence.explain(bert("SequenceClassification"), ["dull", text], method="lrp")
    cut = whence.explain(bert("SequenceClassification", long="truncate"), text, method="lrp")
    assert cut.values.shape == (1, 24)
    clf = bert("SequenceClassification", long="window")
    a = whence.explain(clf, ["dull", text, "a film"], method="input_x_gradient", target="good")
    assert a[1].values.shape == (1, 42)
    assert a[1].units[0] == clf.tokenizer.convert_ids_to_tokens(clf.tokenizer(text)["input_ids"])
    assert [a.text[0], a.text[2]] == ["dull", "a film"]
    ids = clf.tokenizer(text)["input_ids"]
    first = torch.tensor([[*ids[:23], ids[-1]]])  # the first window: its first tokens are in no other one
    bare = whence.explain(clf.model, {"input_ids": first}, method="input_x_gradient", target=2)
    close(a[1].values[:, 1:8], bare.values[:, 1:8], 1e-5)


# ---- in a notebook ----


@pytest.mark.slow
def test_a_notebook_shows_an_explanation(bert: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Executed in a kernel of its own: a folder, a sentence with markup in it, the Attribution as the last value."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    bert("SequenceClassification")  # writes the folder
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONPATH", str(Path(whence.__file__).parents[1]))
    made = nbformat.v4
    cells = [
        "import whence\nmodel = whence.load('SequenceClassification')",
        "a = whence.explain(model, 'a film<script>dull()</script>', method='lrp')\na",
    ]
    book = made.new_notebook(cells=[made.new_code_cell(cell) for cell in cells])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the client's own, of its event loop and its cells' ids
        nbclient.NotebookClient(
            book, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
        ).execute()
    (shown,) = [o["data"] for o in book.cells[-1].outputs if o["output_type"] == "execute_result"]
    page = shown["text/html"]
    assert "<script" not in page
    assert "&lt;" in page
    assert "rgba(" in page  # some token has a colour
    assert shown["text/plain"].startswith("Attribution(lrp, 1 row")


def test_long_texts_are_told_of_once_and_with_ways_that_there_are(bert: Any, caplog: pytest.LogCaptureFixture) -> None:
    text = " ".join(["a clever piece of cinema"] * 8)
    log = logging.getLogger("transformers")
    log.addHandler(caplog.handler)
    try:
        with pytest.raises(InputError, match='"window"'):
            whence.explain(bert("SequenceClassification"), text, method="lrp")
        for head, given in (("TokenClassification", text), ("SequenceClassification", ("a film", text))):
            with pytest.raises(InputError, match='"truncate"') as told:
                whence.explain(bert(head), given, method="lrp")
            assert "window" not in str(told.value)
    finally:
        log.removeHandler(caplog.handler)
    assert "longer than" not in caplog.text


# ---- spans ----


ANY = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Co", "Cn")), min_size=1, max_size=20)
MIXED = st.text(st.sampled_from("abc01 éñ\u0301שלוםمر中😀👩🏽,.!?'-_"), min_size=1, max_size=20)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(ANY)
def test_spans_are_in_order_and_inside(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    fast, slow, byte = _tokenizers(tmp_path_factory)
    for tokenizer in (fast, slow, byte):
        if not tokenizer(text)["input_ids"]:
            continue
        (tokens,) = tokens_of(tokenizer, (text,))
        spans = [span for span, special in zip(tokens.spans, tokens.special, strict=True) if not special]
        assert all(0 <= a <= b <= len(text) for a, b in spans)
        assert spans == sorted(spans, key=lambda s: s[0])
        seen = "".join(text[a:b] for a, b in dict.fromkeys(spans))
        for character in text if tokenizer is not slow else "":  # what has a letter is somewhere
            if character.isascii() and character.isalnum():
                assert character in seen
    spans = words_in(text)
    assert "".join(text[a:b] for a, b in spans) == "".join(c for c in text if not c.isspace())
    assert not any(unicodedata.category(text[a])[0] == "M" and a and not text[a - 1].isspace() for a, _ in spans[1:])


@settings(max_examples=150, deadline=None, derandomize=True)
@given(MIXED)
def test_a_slow_tokenizer_has_the_spans_of_a_fast_one(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    fast, slow, _ = _tokenizers(tmp_path_factory)
    one, other = (tokens_of(tokenizer, (text,))[0] for tokenizer in (fast, slow))
    assert one.ids["input_ids"] == other.ids["input_ids"]
    assert one.spans == other.spans


_MADE: list[Any] = []


def _tokenizers(factory: pytest.TempPathFactory) -> list[Any]:
    if not _MADE:
        folder = factory.mktemp("words")
        _MADE.extend([wordpiece(folder), wordpiece(folder, slow=True), bytes_of(folder)])
    return _MADE


def test_a_fast_tokenizer_is_called_once_for_all_texts_and_once_for_all_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, slow = (wordpiece(tmp_path, slow=kind) for kind in (False, True))
    rows = [("a clever film",), ("it's dull!", "naïve café"), ("e\u0301t\u00e9 dull",), ("a film", "x"), ("dull", "")]
    calls, own = [], type(fast).__call__
    monkeypatch.setattr(
        type(fast), "__call__", lambda self, *args, **how: calls.append(args) or own(self, *args, **how)
    )
    together = [only for (only,) in tokens_of_all(fast, rows)]
    assert [len(args) for args in calls] == [1, 2]
    monkeypatch.undo()
    for row, tokens in zip(rows, together, strict=True):
        assert tokens.ids["input_ids"] == fast(*row)["input_ids"]
        alone = tokens_of(slow if all(row) else fast, row)[0]  # slow ones keep an empty second text
        assert (tokens.spans, tokens.words, tokens.units) == (alone.spans, alone.words, alone.units)
        assert (tokens.text, tokens.special, tokens.segments) == (row, alone.special, alone.segments)


@pytest.mark.parametrize(
    "text", ["a clever film", "naïve café, dull!", "שלום a film", "x 😀 film", "e\u0301t\u00e9 dull", "it's"]
)
def test_a_fast_and_a_slow_tokenizer_agree(tmp_path: Path, text: str) -> None:
    fast, slow = (tokens_of(wordpiece(tmp_path / "w", slow=kind), (text,))[0] for kind in (False, True))
    assert fast.ids["input_ids"] == slow.ids["input_ids"]
    assert fast.spans == slow.spans
    assert fast.words == slow.words


# ---- images ----


@pytest.mark.parametrize("name", ["vit", "deit", "swin", "beit", "resnet", "convnext", "mobilenet_v2"])
def test_images(name: str, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    family = FAMILIES[name]
    model = family.build(family.kinds[0]).float()
    size = 32 if name == "mobilenet_v2" else 16
    model.config.id2label, model.config.label2id = {0: "cat", 1: "dog", 2: "owl"}, {"cat": 0, "dog": 1, "owl": 2}
    processor = hf.ViTImageProcessor(size={"height": size, "width": size})
    clf = whence.load(stored(tmp_path / "m", model, processor))
    g = torch.Generator().manual_seed(0)
    pictures = [image.fromarray((torch.rand(20, 30, 3, generator=g) * 255).byte().numpy()) for _ in range(2)]
    pictures[0].save(tmp_path / "0.png")
    a = whence.explain(clf, [tmp_path / "0.png", pictures[1]], method="input_x_gradient", target="dog")
    assert a.labels == ["dog", "dog"]
    pixels = processor(images=pictures, return_tensors="pt")["pixel_values"]
    close(a.values, whence.explain(model, {"pixel_values": pixels}, method="input_x_gradient", target=1).values, 1e-5)
    array = torch.from_numpy(__import__("numpy").array(pictures[1]))
    for form in (array, array.numpy(), array.permute(2, 0, 1), array / 255):
        close(whence.explain(clf, form, method="input_x_gradient", target="dog").values[0], a.values[1], 1e-4)
    with pytest.raises(InputError, match="from 0 to 1"):
        whence.explain(clf, array.double(), method="gradient")
    with pytest.raises(InputError, match="1800 of 1800 values that are NaN"):
        whence.explain(clf, array.float() * float("nan"), method="gradient")
    with pytest.raises(InputError, match="array of the shape"):
        whence.explain(clf, array[None], method="gradient")
    with pytest.raises(InputError, match="no such file.*\n.*reads images"):
        whence.explain(clf, "a clever film", method="gradient")


class Seen:
    """An image processor that keeps what it was given."""

    def __call__(self, images: Any, return_tensors: str) -> dict[str, Any]:
        return {
            "pixel_values": torch.stack([torch.tensor(list(i.tobytes())).view(i.height, i.width, 3) for i in images])
        }


def test_arrays_of_every_kind_are_bytes_or_a_mistake() -> None:
    image = pytest.importorskip("PIL.Image")
    numpy = pytest.importorskip("numpy")
    grey = numpy.array([[0, 51], [102, 255]])
    forms = [
        grey, grey.astype(numpy.uint8), grey.astype(numpy.uint16) * 257, grey / 255,
        torch.tensor(grey / 255).bfloat16(),
        image.fromarray(grey.astype(numpy.uint16) * 257), image.fromarray((grey / 255).astype(numpy.float32)),
    ]  # fmt: skip
    for form in forms:
        found = pixels(Seen(), form)
        assert (found - torch.tensor(grey)[None, :, :, None]).abs().max() <= 1, form
    assert pixels(Seen(), grey > 60)[0, :, :, 0].tolist() == [[0, 0], [255, 255]]
    for form, told in {
        "too large": (grey + 1, "values from 1 to 256"), "below 0": (grey - 1, "values from -1 to 254"),
        "complex": (grey * 1j, "array of complex128"), "text": (grey.astype(str), "array of <U"),
        "objects": (grey.astype(object), "array of object"),
        "mode F": (image.fromarray(grey.astype(numpy.float32)), "values from 0 to 255"),
        "mode F with NaN": (image.fromarray((grey * numpy.nan).astype(numpy.float32)), "4 of 4 values that are NaN"),
    }.values():  # fmt: skip
        with pytest.raises(InputError, match=told):
            pixels(Seen(), form)


def test_alpha_that_hides_something_is_told(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    assert pixels(Seen(), image.new("RGBA", (2, 2), (9, 8, 7, 255))).flatten()[:3].tolist() == [9, 8, 7]
    image.new("RGBA", (2, 2), (9, 8, 7, 100)).save(tmp_path / "a.png")
    for form in (tmp_path / "a.png", torch.full((2, 2, 4), 9, dtype=torch.uint8)):
        with pytest.warns(whence.errors.WhenceWarning, match="its alpha channel is dropped"):
            assert int(pixels(Seen(), form)[0, 0, 0, 0]) == 9


def test_files_that_are_no_images_of_a_fair_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (30, 30)).save(tmp_path / "a.png")
    with pytest.raises(InputError, match="not an image that Pillow can read.*\n.*Give a path"):
        pixels(Seen(), "a\0b.png")
    monkeypatch.setattr(image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(InputError, match="more pixels than Pillow opens.*\n.*smaller"):
        pixels(Seen(), tmp_path / "a.png")


def test_an_image_and_a_text(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    from tokenizers.processors import TemplateProcessing

    tokenizer = bytes_of(tmp_path)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A <end>", special_tokens=[("<end>", 0)])
    processor = hf.CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    text_config = {**SMALL, "vocab_size": 300, "eos_token_id": 0, "max_position_embeddings": 24}
    config = hf.CLIPConfig(
        text_config=text_config, vision_config={**SMALL, "image_size": 16, "patch_size": 4}, projection_dim=8
    )

    both = hf.CLIPProcessor(image_processor=processor, tokenizer=tokenizer)
    clip = whence.load(stored(tmp_path / "m", hf.CLIPModel(config).eval(), both))
    pictures = [image.new("RGB", (20, 20), colour) for colour in ("red", "blue")]
    a = whence.explain(clip, [(pictures[0], "a clever film"), (pictures[1], "dull")], method="input_x_gradient")
    alone = whence.explain(clip, (pictures[1], "dull"), method="input_x_gradient")
    close(a.values["pixel_values"][1], alone.values["pixel_values"][0], 1e-4)
    close(a.output_value[1:], alone.output_value, 1e-5)


def test_a_plain_classifier_with_a_function() -> None:
    model = nn.Linear(3, 2)
    read = lambda rows: torch.tensor([[len(r), r.count("a"), 1.0] for r in rows])  # noqa: E731
    clf = whence.wrap(model, read, labels=["no", "yes"])
    a = whence.explain(clf, ["banana", "kiwi"], method="input_x_gradient", target="yes")
    close(a.values, whence.explain(model, read(["banana", "kiwi"]), method="input_x_gradient", target=1).values, 1e-6)
    assert a.labels == ["yes", "yes"]
    alone = whence.explain(clf, "kiwi", method="input_x_gradient", target="yes")  # the function gets a list here too
    close(alone.values, a.values[1:], 1e-6)
    assert whence.explain(clf, ["banana", "kiwi"], method="gradient", target=["no"]).labels == ["no", "no"]
    with pytest.raises(whence.InputError, match=r"raised KeyError: 'a'(.|\n)*gets a list of rows \(here 1\)") as caught:
        whence.explain(whence.wrap(model, lambda rows: {}["a"]), "kiwi", method="gradient")
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(whence.InputError, match=r"made 3 rows of 1(.|\n)*gets a list"):
        whence.explain(whence.wrap(model, lambda rows: torch.ones(3, 3)), "kiwi", method="gradient")
    with pytest.raises(whence.InputError, match="returned str without a tensor"):
        whence.explain(whence.wrap(model, lambda rows: "kiwi"), "kiwi", method="gradient")


# ---- tokens as text ----


def metaspace() -> Any:
    """A SentencePiece-like tokenizer that falls back to bytes, as Llama 2's."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    pieces = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁a", "▁film", "s"]
    made = Tokenizer(
        models.BPE({piece: n for n, piece in enumerate(pieces)}, [], byte_fallback=True, unk_token="<unk>")
    )
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return hf.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", bos_token="<s>")


def test_byte_level_tokens_are_shown_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = built("GPT2LMHeadModel", "GPT2Config", 310, n_embd=16, n_layer=2, n_head=2, n_positions=48, eos_token_id=0)
    lm = whence.load(stored(tmp_path / "m", model, bytes_of(tmp_path)))
    text = "a clever 中 é\n film"
    a = whence.explain(lm, text, method="input_x_gradient")
    assert "".join(unit for unit in a.units[0] if unit.isascii()).split() == ["aclever", "film"]
    assert [unit for unit in a.units[0] if not unit.isascii()] == [f"中⟨{i}/3⟩" for i in (1, 2, 3)] + [
        "é⟨1/2⟩",
        "é⟨2/2⟩",
    ]
    assert "\n" in a.units[0]
    for unit, (start, end) in zip(a.units[0], a.spans[0], strict=True):
        assert "⟨" in unit or unit == text[start:end] or unit.isspace()
    assert a.labels == [lm.tokenizer.decode([a.target[0][1]])] or "⟨" in a.labels[0]
    a.show()
    told = capsys.readouterr().out + a.to_html() + repr(a.top(20)) + str(a.merge_words().units)
    assert "⏎" in told
    assert not set("ĠĊÃ©ä¸Ń") - {"©"} & set(told)
    assert a.merge_words().units == [["a", "clever", "中", "é", "film"]]
    every = whence.explain(lm, text, method="input_x_gradient", target=" 中")  # tokens that are written, too
    assert every.labels == [[" ", "中⟨1/3⟩", "中⟨2/3⟩", "中⟨3/3⟩"]]
    assert every.units[0][-3:] == [" ", "中⟨1/3⟩", "中⟨2/3⟩"]
    beyond = whence.explain(lm, text, method="input_x_gradient", target=305)  # vocabularies are often padded
    assert beyond.labels == ["⟨305⟩"]
    for wrong in (-1, (0, 5), True):
        with pytest.raises(whence.TargetError, match="is not the id of a token.\n.*predicted token"):
            whence.explain(lm, text, method="input_x_gradient", target=wrong)


@pytest.mark.parametrize(
    ("tokens", "shown"),
    [
        (["Ġcaf", "Ã©"], [" caf", "é"]),
        (["Ġ", "ä¸", "ŃåĽ", "½"], [" ", "中⟨1/2⟩", "中⟨2/2⟩国⟨1/2⟩", "国⟨2/2⟩"]),
        (["åĽ", "Ġa"], ["⟨e5 9b⟩", " a"]),
        (["ä¸", "<end>", "Ń"], ["⟨e4 b8⟩", "<end>", "⟨ad⟩"]),
        (["ĠðŁ", "ĺ", "Ģ!"], [" 😀⟨1/3⟩", "😀⟨2/3⟩", "😀⟨3/3⟩!"]),
        (["film</w>", "Ċ"], ["film", "\n"]),
        (["中"], ["中"]),  # a letter that is no sign of a byte: text already
    ],
)
def test_bytes_are_put_together(tokens: list[str], shown: list[str]) -> None:
    from whence.adapters.decoding import texts_of

    known = SimpleNamespace(
        convert_ids_to_tokens=lambda ids: [tokens[i] for i in ids],
        byte_decoder={},
        all_special_ids=[1] * ("<end>" in tokens),
    )
    assert texts_of(known, range(len(tokens))) == shown


def test_pieces_lose_their_sign_for_a_space_and_bytes_come_together() -> None:
    from whence.adapters.decoding import texts_of, units_of

    tokenizer = metaspace()
    names = ["<s>", "▁film", "s", "▁", "<0xE4>", "<0xB8>", "<0xAD>", "<unk>"]
    ids = tokenizer.convert_tokens_to_ids(names)
    expected = ["<s>", " film", "s", " ", "中⟨1/3⟩", "中⟨2/3⟩", "中⟨3/3⟩", "<unk>"]
    assert texts_of(tokenizer, ids) == expected
    assert units_of(tokenizer, ids) == [unit.lstrip() or unit for unit in expected]


# ---- generation ----


@pytest.fixture(params=["gpt2", "llama"])
def writer(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    tokenizer = bytes_of(tmp_path)
    if request.param == "gpt2":
        model = built(
            "GPT2LMHeadModel", "GPT2Config", 300, n_embd=16, n_layer=2, n_head=2, n_positions=24, eos_token_id=0
        )
    else:
        model = built("LlamaForCausalLM", "LlamaConfig", 300, num_key_value_heads=1, head_dim=8, eos_token_id=0)
    return whence.load(stored(tmp_path / "m", model, tokenizer))


def test_the_next_token(writer: Any) -> None:
    a = whence.explain(writer, ["a clever film", "dull"], method="input_x_gradient")
    for row, text in enumerate(["a clever film", "dull"]):
        ids = writer.tokenizer(text, return_tensors="pt")["input_ids"]
        token = int(writer.model(input_ids=ids).logits[0, -1].argmax())
        assert a.target[row] == (ids.shape[1] - 1, token)
        bare = whence.explain(writer.model, {"input_ids": ids}, method="input_x_gradient", target=(-1, token))
        close(a[row].values, bare.values, 1e-4)


def test_every_token_of_a_generated_text_from_one_pass(writer: Any) -> None:
    written = writer.complete("a clever", tokens=4)
    k, n = len(written.ids), len(writer.tokenizer("a clever")["input_ids"])
    a = whence.explain(writer, "a clever", method="input_x_gradient", target=written)
    assert a.values.shape == (1, k, n + k - 1)
    assert (a.receipt["forward_passes"], a.receipt["backward_passes"]) == (1, k)
    pieces = [writer.tokenizer.decode([number]) for number in written.ids]
    assert [name for name in a.labels[0] if "⟨" not in name] == [piece for piece in pieces if "\ufffd" not in piece]
    assert not {"Ġ", "Ċ"} & set("".join([*a.labels[0], *a.units[0]]))
    for i in range(k):  # nothing from the future
        assert float(a.values[0, i, n + i :].abs().max() if n + i < a.values.shape[2] else 0.0) == 0
    b = whence.explain(writer, "a clever", method="deeplift", target=written)
    close(b.values.sum(2), b.output_value - b.baseline_value, 1e-3)
    text = whence.explain(writer, "a clever film", method="input_x_gradient", target=...)
    assert text.values.shape[1] == text.values.shape[2] - 1
    for words in (["a", "b"], ["a clever"] * 2):
        with pytest.raises(InputError, match="one text at a time"):
            whence.explain(writer, words, method="gradient", target=...)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_a_source_and_its_target(name: str, tmp_path: Path) -> None:
    tokenizer = wordpiece(tmp_path / "w")
    model = FAMILIES[name].build("sdpa").float()
    model.resize_token_embeddings(len(tokenizer))
    translator = whence.load(stored(tmp_path / "m", model, tokenizer))
    a = whence.explain(translator, "a clever film", method="input_x_gradient", target="dull film")
    assert a.values["input_ids"].shape == (1, 2, 5)
    assert a.values["decoder_input_ids"].shape == (1, 2, 2)
    assert a.receipt["forward_passes"] == 1
    assert a.labels == [["dull", "film"]]
    assert a.units["input_ids"] == [["[CLS]", "a", "clever", "film", "[SEP]"]]
    assert float(a.values["decoder_input_ids"][0, 0, 1].abs()) == 0
    free = whence.explain(translator, "a clever film", method="input_x_gradient")
    assert free.values["input_ids"].shape[2] == 5


def test_what_a_translation_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    translator = whence.load("zoo:translation")
    text = translator.examples[3]
    with pytest.raises(InputError, match="A pair was given.*\n.*target="):
        whence.explain(translator, (text, text), method="gradient")
    with pytest.raises(InputError, match="2 rows were given"):
        whence.explain(translator, [text, text], method="gradient")
    a = whence.explain(translator, text, method="input_x_gradient")
    with pytest.raises(InputError, match="merge_words.*input_ids, decoder_input_ids.\n.*by its name"):
        a.merge_words()
    with pytest.raises(ParameterError, match='units="messages" is for conversations'):
        whence.explain(translator, text, method="leave_one_out", units="messages")
    monkeypatch.setattr("whence.adapters.tokens.limit_of", lambda *given: 2)
    for long in ("error", "window"):
        with pytest.raises(InputError, match='takes 2.\n.*"truncate"') as told:
            whence.explain(whence.load("zoo:translation", long=long), text, method="gradient")
        assert "window" not in str(told.value)


# ---- rows keep what is theirs ----


def test_options_by_row_follow_their_rows(bert: Any) -> None:
    import numpy as np

    clf = bert("SequenceClassification")
    batch = dict(clf.tokenizer(TEXTS, padding=True, return_tensors="pt"))
    other = torch.where(batch["attention_mask"] == 1, 7, 0)
    units = torch.arange(batch["input_ids"].shape[1]).expand(3, -1) // 2
    for options in (
        {"method": "integrated_gradients", "baseline": other, "steps": 3},
        {"method": "leave_one_out", "units": units},
    ):
        a, b = (whence.explain(m, x, target=0, **options).values for m, x in ((clf, TEXTS), (clf.model, batch)))
        close(a, b, 1e-4)
    noise = {"method": "smoothgrad", "of": "input_x_gradient", "samples": 3, "target": 0}
    listed = whence.explain(clf, TEXTS, seed=[4, 5, 6], **noise).values
    for seed in (range(4, 7), np.array([4, 5, 6]), torch.tensor([4, 5, 6])):
        assert torch.equal(whence.explain(clf, TEXTS, seed=seed, **noise).values, listed)
    with pytest.raises(ParameterError, match="one int for each of the 3 rows"):
        whence.explain(clf, TEXTS, seed=[1, 2], **noise)
    assert whence.explain(clf, TEXTS, method="attcat", target=np.array([0, 1, 2])).target.tolist() == [0, 1, 2]
    kept = whence.explain(clf, TEXTS * 12, method="attcat", keep=("attention",)).kept["attention"]
    assert [len(layer) for layer in kept] == [36, 36]


def test_long_and_short_texts_together(bert: Any) -> None:
    clf = bert("SequenceClassification", long="window")
    long = " ".join(["a clever piece of cinema"] * 8)
    for method in ("lrp", "integrated_gradients", "deeplift", "leave_one_out"):
        a = whence.explain(clf, ["dull", long], method=method, target=0)
        close(a[0].values, whence.explain(clf, "dull", method=method, target=0).values, 1e-3)
    pair = whence.explain(bert("SequenceClassification", long="truncate"), (long, "a film"), method="lrp")
    assert pair.units[0][-3:] == ["a", "film", "[SEP]"]  # the longer one is cut
    assert len(pair.units[0]) == 24


def test_a_model_in_training_predicts_as_in_use(writer: Any) -> None:
    expected = writer.complete("a clever", tokens=3).ids
    writer.model.train()
    for module in writer.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5
    assert [writer.complete("a clever", tokens=3).ids for _ in range(3)] == [expected] * 3
    assert writer.model.training


def test_values_of_a_layer_are_no_tokens(bert: Any) -> None:
    clf = bert("SequenceClassification")
    a = whence.explain(clf, TEXTS, method="input_x_gradient", at="bert.pooler")
    assert a.units is None
    assert a.text == TEXTS
    a.show()


def test_functions_and_positions_as_targets(bert: Any) -> None:
    clf = bert("SequenceClassification")
    a = whence.explain(clf, TEXTS, method="input_x_gradient", target=lambda out: out.logits[:, 1])
    close(a.values, whence.explain(clf, TEXTS, method="input_x_gradient", target=1).values, 1e-6)
    tagger = bert("TokenClassification")
    with pytest.raises(TargetError, match="position is 5"):
        whence.explain(tagger, ["a", TEXTS[0]], method="gradient", target=[(5, 0), (1, 0)])
    reader = bert("QuestionAnswering")
    with pytest.raises(TargetError, match='"start" or "end"'):
        whence.explain(reader, ("what", "a film"), method="gradient", target="middle")
    at = whence.explain(reader, ("what", "a film"), method="input_x_gradient", target=3)
    assert at.target.tolist() == [3]


def test_a_trace_of_a_loaded_model(writer: Any) -> None:
    assert len(whence.trace(writer, "a clever", method="lrp", target=" film", show=False)) > 10


# ---- mistakes ----


@pytest.mark.parametrize("left", [(), ("tokenizer_config.json",), ("LICENSE.model",)])
def test_a_folder_without_tokenizer_files_is_no_model_of_texts(
    bert: Any, tmp_path: Path, left: tuple[str, ...]
) -> None:
    """Without them every word would be read as [UNK]."""
    bert("SequenceClassification")
    whole, folder = tmp_path / "SequenceClassification", tmp_path / "bare"
    folder.mkdir()
    (whole / "LICENSE.model").write_text("a licence, and no vocabulary")
    for name in ("config.json", "model.safetensors", *left):
        (folder / name).write_bytes((whole / name).read_bytes())
    with pytest.raises(FileError, match="bare' has no tokenizer files.*\n.*save_pretrained"):
        whence.load(folder)


def test_mistakes(bert: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clf = bert("SequenceClassification")
    with pytest.raises(TargetError, match="not a label.*'good'"):
        whence.explain(clf, "dull", method="gradient", target="godo")
    with pytest.raises(TargetError) as error:
        whence.explain(clf, "dull", method="gradient", target="xyz")
    assert str(error.value).count("'good'") == 1
    with pytest.raises(TargetError, match="2 entries"):
        whence.explain(clf, TEXTS, method="gradient", target=["good", "bad"])
    with pytest.raises(InputError, match="reads text"):
        whence.explain(clf, torch.zeros(1, 3), method="gradient")
    folder = tmp_path / "SequenceClassification"
    with pytest.raises(ModelError, match="does text-classification"):
        whence.load(folder, task="image-classification")
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "other").mkdir()
    for file in folder.iterdir():
        (tmp_path / "other" / file.name).write_bytes(file.read_bytes())
    config["architectures"] = ["BertForMaskedLM"]
    (tmp_path / "other" / "config.json").write_text(json.dumps(config))
    with pytest.raises(FileError, match="no weights for"):
        whence.load(tmp_path / "other")
    weights = folder / "model.safetensors"
    weights.rename(folder / "pytorch_model.bin")
    with pytest.raises(FileError, match="pickle.*\n.*save_pretrained"):
        whence.load(folder)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(FileError, match="no weights"):
        whence.load(folder)
    with pytest.raises(FileError, match="config.json"):
        whence.load(tmp_path)
    (folder / "config.json").write_text(json.dumps({"model_type": "nothing"}))
    weights.touch()
    with pytest.raises(FileError, match="no model configuration"):
        whence.load(folder)
    with pytest.raises(ParameterError, match="load has no parameter 'lang'. Did you mean 'long'.*\n.*whence.wrap"):
        whence.load("zoo:sentiment", lang="de")
    with pytest.raises(ParameterError, match="long="):
        whence.wrap(nn.Linear(1, 1), len, long="cut")
    with pytest.raises(ModelError, match="not a model that Whence has an adapter for"):
        whence.wrap(clf.model.bert, clf.tokenizer)
    with pytest.raises(ParameterError, match="processor is int"):
        whence.wrap(nn.Linear(1, 1), 3)
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(ParameterError, match="needs transformers"):
        whence.load(folder)


def test_left_or_right_padding_is_the_same(bert: Any, writer: Any) -> None:
    for wrapped in (bert("SequenceClassification"), writer):
        found = []
        for side in ("right", "left"):
            wrapped.tokenizer.padding_side = side
            found.append(whence.explain(wrapped, TEXTS, method="input_x_gradient").values)
        close(found[1], found[0], 1e-6)


class Boxes(nn.Module):
    """Several ids per token, each looked up by itself, beside a mask: as LayoutLM has it."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.left, self.top, self.out = *(nn.Embedding(20, 4) for _ in range(3)), nn.Linear(4, 2)

    def forward(self, input_ids: Tensor, bbox: Tensor, attention_mask: Tensor) -> Tensor:
        h = self.words(input_ids) + self.left(bbox[:, :, 0]) + self.top(bbox[:, :, 1])
        return self.out((h.tanh() * attention_mask[..., None]).sum(1))


@pytest.mark.parametrize("method", ["gradient", "integrated_gradients", "deeplift", "lrp", "occlusion", "smoothgrad"])
def test_several_ids_per_token_have_scores_each_and_padding_none(method: str) -> None:
    torch.manual_seed(0)
    model = Boxes().double()
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    inputs = {
        "input_ids": torch.randint(0, 20, (2, 3)), "bbox": torch.randint(0, 20, (2, 3, 2)), "attention_mask": mask
    }  # fmt: skip
    both = whence.explain(model, inputs, method=method, target=0)
    assert both.values["bbox"].shape == (2, 3, 2)
    assert not both.values["bbox"][1, 2].any()
    assert both[1].values["bbox"].shape == (1, 2, 2)
    alone = whence.explain(model, {key: value[1:] for key, value in inputs.items()}, method=method, target=0)
    close(both.values["bbox"][1:], alone.values["bbox"], 1e-12)
