"""Files, folders and rows that mean harm: nothing of them steers a terminal, runs code, or becomes a formula."""

from __future__ import annotations

import ast
import contextlib
import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import whence
from whence.util.files import csv_text
from whence.util.terminal import clean, safe, say_json
from whence.views import export

ROOT = Path(__file__).resolve().parents[1]
STEER = (
    "\x1b]52;c;ZXZpbA==\x07\x9b2J\r\u202e"  # sets the clipboard, clears the screen, writes over, turns letters round
)
HARM = f"{STEER}<script>alert(1)</script>$\\frac{{$"
SHOWN = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
OWN = re.compile(r"\x1b\[(48;2;\d+;\d+;\d+|30|97|0)m")  # our colours


def hostile(several: bool = False) -> whence.Attribution:
    """An attribution whose every text is the attacker's."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    target = torch.tensor([[0, 1], [1, 0]]) if several else 0
    a = whence.explain(model, torch.randn(2, 3), method="lrp", target=target)
    receipt = {
        **a.receipt, "model": HARM, HARM: HARM, "output": HARM, "warnings": [HARM], "row_by_row": HARM,
        "unruled": [{"op": HARM, "module": HARM}], "unseen": [{"node": HARM, "module": HARM}],
    }  # fmt: skip
    labels = [[HARM, HARM]] * 2 if several else [HARM] * 2
    return replace(
        a, method=HARM, params={HARM: HARM}, receipt=receipt, units=[[HARM, f"={HARM}", "c"]] * 2, labels=labels,
        text=[HARM, HARM],
    )  # fmt: skip


@pytest.fixture(params=[False, True], ids=["one target", "several"])
def loaded(request, tmp_path) -> whence.Attribution:
    hostile(request.param).save(tmp_path / "a.safetensors")
    return whence.Attribution.load(tmp_path / "a.safetensors")


@pytest.mark.parametrize("colour", ["", "1"])
def test_a_loaded_file_cannot_steer_the_terminal(loaded, colour, capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "" if colour else "1")
    monkeypatch.setenv("FORCE_COLOR", colour)
    both = whence.Comparison({HARM: loaded, "b": loaded})
    loaded.show()
    both.show()
    print(repr(loaded), repr(both), both)
    out = capsys.readouterr().out
    assert "\\x1b]52" in out  # it is told, letter by letter
    assert not SHOWN.search(OWN.sub("", out))


@pytest.mark.filterwarnings("ignore:constrained_layout", "ignore:Glyph")
def test_a_loaded_file_cannot_steer_a_page_a_picture_or_a_table(loaded, tmp_path):
    both = whence.Comparison({HARM: loaded, "b": loaded})
    for found in (loaded, both):
        page = found.to_html()
        assert "<script" not in page
        assert not SHOWN.search(page)
        export.write(found, tmp_path / "a.json")
        json.loads((tmp_path / "a.json").read_text())
        export.write(found, tmp_path / "a.csv")
        with open(tmp_path / "a.csv", newline="") as file:
            lines = list(csv.DictReader(file))
        assert {line["unit"] for line in lines} == {HARM, f"'={HARM}", "c"}
        assert all(float(line["value"]) == float(line["value"]) for line in lines)
    pytest.importorskip("matplotlib")
    export.write(loaded, tmp_path / "a.svg")
    assert "<script" not in (tmp_path / "a.svg").read_text()


def test_json_on_a_terminal_reads_back_as_it_was(capsys):
    say_json(json.dumps({"a": HARM + "é😀"}, ensure_ascii=False))
    out = capsys.readouterr().out
    assert json.loads(out) == {"a": HARM + "é😀"}
    assert "é😀" in out
    assert not SHOWN.search(out)


def test_errors_and_warnings_are_safe_wherever_they_are_shown():
    error = whence.FileError(f"{HARM} is damaged.\n  Save it again.")
    assert str(error) == safe(f"{HARM} is damaged.\n  Save it again.")
    assert str(error).endswith("\n  Save it again.")
    with pytest.warns(whence.WhenceWarning) as caught:
        whence.errors.warn(HARM)
    assert str(caught[0].message) == clean(HARM)


def test_nothing_is_printed_but_through_say():
    """Training scripts of the zoo aside, which are no part of what a user runs."""
    for file in (ROOT / "src").rglob("*.py"):
        if file == ROOT / "src" / "whence" / "util" / "terminal.py" or "training" in file.parts:
            continue
        calls = [n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Call)]
        told = [n.lineno for n in calls if isinstance(n.func, ast.Name) and n.func.id == "print"]
        assert not told or file.name == "__main__.py", f"{file}: {told}"


# ---- tables ----


@pytest.mark.parametrize("lead", ["=", "+", "-", "@", "\t", "\r", "\n", " =", "＝"])
def test_texts_of_a_table_are_no_formulas(lead):
    (_, line) = csv.reader(csv_text(["a"], [[f"{lead}cmd|' /C calc'!A0"]]).splitlines(keepends=True), strict=True)
    assert line == [f"'{lead}cmd|' /C calc'!A0"]


def test_numbers_of_a_table_stay_numbers():
    cells = [-1.5, 2, None, True, "-3", "+4e-05", "-inf", "(0, 1)", "a-b", "nan"]
    (_, line) = csv.reader(csv_text(list("abcdefghij"), [cells]).splitlines())
    assert line == ["-1.5", "2", "", "True", "-3", "+4e-05", "-inf", "(0, 1)", "a-b", "nan"]


def test_a_scoreboards_and_an_axioms_table_are_no_formulas():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    board = whence.evaluate(
        model, torch.randn(3, 3), methods={"=evil()": {"method": "gradient"}}, metrics={"@m": {"metric": "infidelity"}}
    )
    assert "'=evil(),'@m," in board.to_csv()


# ---- folders of models ----


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A small classifier of texts, as save_pretrained writes it."""
    pytest.importorskip("transformers")
    from tests.support.folders import built, stored, wordpiece

    where = tmp_path_factory.mktemp("model")
    tokenizer = wordpiece(where)
    stored(where, built("BertForSequenceClassification", "BertConfig", len(tokenizer)), tokenizer)
    return where


@pytest.fixture
def copied(folder, tmp_path) -> Path:
    import shutil

    return Path(shutil.copytree(folder, tmp_path / "copy"))


def configured(folder: Path, **told) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **told}))


def indexed(folder: Path, shard) -> None:
    """An index instead of the one file of weights, all in this shard."""
    from safetensors.torch import load_file

    names = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "moved.safetensors")
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(names, shard)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_an_index_of_safetensors_loads(copied, folder):
    indexed(copied, "moved.safetensors")
    a, b = (whence.explain(whence.load(f), "a clever film", method="deeplift").values for f in (folder, copied))
    assert torch.equal(a, b)


@pytest.mark.parametrize(
    "shard",
    ["pytorch_model.bin", "../model.safetensors", "/tmp/model.safetensors", "..\\model.safetensors", "a/b.safetensors",
     "C:model.safetensors", "", 3, None, ["x.safetensors"]],
)  # fmt: skip
def test_an_index_names_safetensors_of_its_folder_only(shard, copied):
    indexed(copied, shard if not isinstance(shard, list) else shard[0] + "\0")
    torch.save(torch.nn.Linear(1, 1).state_dict(), copied / "pytorch_model.bin")
    (copied / "moved.safetensors").rename(copied.parent / "model.safetensors")
    with pytest.raises(whence.FileError, match="safetensors"):
        whence.load(copied)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"weight_map": []}', '{"weight_map": {"a": {}}}', "[" * 100_000, "\xff"]
)
def test_an_index_that_is_none(text, copied):
    indexed(copied, "moved.safetensors")
    (copied / "model.safetensors.index.json").write_text(text, encoding="latin-1")
    with pytest.raises(whence.FileError, match="is not an index of weights"):
        whence.load(copied)


@pytest.mark.parametrize("file", ["pytorch_model.bin", "../model.safetensors", "../x.safetensors.index.json", 3])
def test_a_configuration_names_weights_of_its_folder_only(file, copied):
    configured(copied, transformers_weights=file)
    with pytest.raises(whence.FileError, match="config.json of .* names .* as weights"):
        whence.load(copied)


def test_an_index_that_a_configuration_names_is_read_too(copied):
    indexed(copied, "../model.safetensors")
    (copied / "model.safetensors.index.json").rename(copied / "other.safetensors.index.json")
    configured(copied, transformers_weights="other.safetensors.index.json")
    with pytest.raises(whence.FileError, match="other.safetensors.index.json of .* names '../model.safetensors'"):
        whence.load(copied)


def test_an_adapter_that_points_elsewhere(copied):
    (copied / "adapter_config.json").write_text('{"base_model_name_or_path": "someone/model", "peft_type": "LORA"}')
    with pytest.raises(whence.FileError, match="has an adapter.*\n.*merge_and_unload"):
        whence.load(copied)


@pytest.mark.parametrize("asked", ["someone/kernel", "paged|someone/kernel", "flash_attention_2", "eager", "nonsense"])
@pytest.mark.parametrize("word", ["_attn_implementation", "attn_implementation", "_attn_implementation_internal"])
def test_attention_is_pytorchs_whatever_the_folder_says(asked, word, copied, folder):
    configured(copied, **{word: asked, "_experts_implementation": "sonicmoe", "experts_implementation": "x/y"})
    found = whence.load(copied)
    assert found.model.config._attn_implementation == "sdpa"
    told = [whence.explain(m, "a clever film", method="rollout").values for m in (found, whence.load(folder))]
    assert torch.equal(*told)


def test_attention_of_parts_is_pytorchs_too(tmp_path):
    hf = pytest.importorskip("transformers")
    from tests.support.folders import wordpiece

    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = hf.CLIPTextConfig(**small, vocab_size=150, max_position_embeddings=24, eos_token_id=3, bos_token_id=2)
    sight = hf.CLIPVisionConfig(**small, image_size=16, patch_size=8)
    hf.CLIPModel(hf.CLIPConfig(text_config=text.to_dict(), vision_config=sight.to_dict())).save_pretrained(tmp_path)
    told = json.loads((tmp_path / "config.json").read_text())
    for part in ("text_config", "vision_config"):
        told[part]["_attn_implementation"] = "someone/kernel"
    (tmp_path / "config.json").write_text(json.dumps(told))
    tokenizer = wordpiece(tmp_path)
    hf.CLIPProcessor(hf.CLIPImageProcessorPil(size=16, crop_size=16), tokenizer).save_pretrained(tmp_path)
    model = whence.load(tmp_path).model
    parts = (model.config, model.config.text_config, model.config.vision_config)
    assert [part._attn_implementation for part in parts] == ["sdpa"] * 3


@pytest.mark.parametrize("kind", ["mxfp4", "fp8", "nvfp4", "fbgemm_fp8", "someone/kernel"])
def test_quantisation_that_asks_for_kernels(kind, copied):
    configured(copied, quantization_config={"quant_method": kind})
    with pytest.raises(whence.FileError, match=r"is quantised \(.*\n.*whence.wrap"):
        whence.load(copied)


@pytest.mark.parametrize("where", ["config.json", "tokenizer_config.json"])
def test_code_in_a_folder_does_not_run(where, copied):
    (copied / "evil.py").write_text("open('ran', 'w')\nclass Evil: pass\n")
    told = json.loads((copied / where).read_text())
    names = ("AutoConfig", "AutoModelForSequenceClassification", "AutoTokenizer")
    told |= {"auto_map": dict.fromkeys(names, "evil.Evil"), "model_type": "evil", "tokenizer_class": "Evil"}
    told["auto_map"]["AutoTokenizer"] = ["evil.Evil", None]
    (copied / where).write_text(json.dumps(told))
    with contextlib.suppress(whence.FileError):  # a tokenizer of another class is taken instead
        whence.load(copied)
    assert not (copied / "ran").exists()
    assert not Path("ran").exists()


@pytest.mark.parametrize("name", ["pipeline", "AutoModel", "logging", "Trainer", "__builtins__", 3])
def test_architectures_are_classes_of_models(name, copied):
    configured(copied, architectures=[name])
    with pytest.raises(whence.WhenceError, match="does not name the model's class|has adapters|There are adapters"):
        whence.load(copied)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("text", ["", "[]", "3", "[" * 100_000, '{"a":' * 100_000, "\0", '{"model": {}}'])
def test_damaged_files_of_a_folder_are_one_error(file, text, copied):
    (copied / file).write_text(text)
    with contextlib.suppress(whence.WhenceError):
        whence.load(copied)


def test_a_name_without_a_network_fails_at_once_and_points_at_a_folder(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    import huggingface_hub

    asked = []
    session = huggingface_hub.utils.get_session()
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setattr(session, "request", lambda *a, _real=session.request, **k: asked.append(a) or _real(*a, **k))
    with pytest.raises(whence.FileError, match="is not a folder, and .* cannot be reached.\n  Give a model's folder"):
        whence.load("somebody/some-model")
    assert len([one for one in asked if one[0] == "HEAD"]) == 1  # nothing is tried again
    assert not [one for one in asked if "some-model" in one[1]]
