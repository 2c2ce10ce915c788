"""What the server answers is what `whence` answers: explanations of each kind, removal, curves, attention, writing."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
import torch

import whence
from tests.support.server import Server
from whence.adapters.generation import Continuation
from whence.evaluation.deletion_check import checked

REVIEW = "Despite a clumsy start, this is unforgettable."


def numbers(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.fixture(scope="module")
def sentiment() -> Any:
    return whence.load("zoo:sentiment")


@pytest.fixture(scope="module")
def language() -> Any:
    return whence.load("zoo:language")


# ---- models and predictions ----


def test_models_are_listed_and_described(server: Server) -> None:
    listed = server.get("/api/models")
    assert [one["name"] for one in listed][:2] == ["zoo:questions", "zoo:sentiment"]
    assert {one["kind"] for one in listed} == {"text", "image", "prompt", "seq2seq"}
    one = server.get("/api/models/zoo:sentiment")
    assert one["labels"] == ["negative", "positive"]
    assert [method["name"] for method in one["methods"]] == list(whence.methods)
    why_not = {method["name"]: method["why_not"] for method in one["methods"] if not method["runs"]}
    assert set(why_not) == {"grad_cam", "guided_grad_cam", "permutation"}
    assert one["defaults"] == ["integrated_gradients", "attnlrp", "shapley", "transformer_attribution"]
    assert one["has_attention"]
    cnn = server.get("/api/models/zoo:fashion-cnn")
    assert not cnn["has_attention"]
    assert cnn["defaults"] == ["integrated_gradients", "attnlrp", "grad_cam", "occlusion"]
    status, headers, content = server.send("GET", cnn["examples"][0]["url"])
    assert (status, headers["content-type"], content[:4]) == (200, "image/png", b"\x89PNG")


def test_a_method_that_is_said_to_run_runs_and_one_that_is_not_does_not(server: Server) -> None:
    for model in ("zoo:questions", "zoo:fashion-cnn"):
        one = server.get(f"/api/models/{model}")
        given = {key: value for key, value in one["examples"][0].items() if key in ("text", "example")}
        names = [method["name"] for method in one["methods"]]
        told = server.ask(kind="explain", model=model, input=given, methods=names)
        assert {failed["method"] for failed in told["failed"]} == {m["name"] for m in one["methods"] if not m["runs"]}


def test_predictions(server: Server, sentiment: Any) -> None:
    found = server.post("/api/predict", {"model": "zoo:sentiment", "input": {"text": REVIEW}})
    with torch.no_grad():
        logits = sentiment.model(**sentiment.tokenizer(REVIEW, return_tensors="pt")).logits[0].double()
    assert found["chosen"] == int(logits.argmax())
    assert [one["index"] for one in found["classes"]] == logits.argsort(descending=True).tolist()
    for one in found["classes"]:
        assert one["probability"] == pytest.approx(float(logits.softmax(0)[one["index"]]), abs=1e-6)
    assert [unit["text"] for unit in found["units"] if not unit["special"]][-2:] == ["unforgettable", "."]
    assert [unit["text"] for unit in found["tokens"]] == sentiment.tokenizer.tokenize(REVIEW, add_special_tokens=True)
    for unit in found["units"]:
        assert unit["special"] or REVIEW[unit["start"] : unit["end"]] == unit["text"]


def test_a_class_may_be_chosen_by_number_or_by_name(server: Server, sentiment: Any) -> None:
    for target in (0, "negative"):
        body = {"model": "zoo:sentiment", "input": {"text": REVIEW}, "target": target}
        assert server.post("/api/predict", body)["chosen"] == 0
        (found,) = server.ask(kind="explain", **body, methods=["deeplift"])["results"]
        expected = whence.explain(sentiment, REVIEW, method="deeplift", target="negative").merge_words()
        assert torch.equal(numbers(found["values"]).float(), expected.values[0])
        assert found["targets"][0]["label"] == "negative"
    assert server.refused("POST", "/api/predict", {**body, "target": 7})[0] == 422
    assert server.refused("POST", "/api/predict", {**body, "target": "nobody"})[1] == "TargetError"


# ---- explanations ----


@pytest.mark.parametrize("units", ["words", "tokens"])
def test_texts_are_explained_as_by_explain(server: Server, sentiment: Any, units: str) -> None:
    names = ["integrated_gradients", "attnlrp", "transformer_attribution", "gradient"]
    told = server.ask(kind="explain", model="zoo:sentiment", input={"text": REVIEW}, methods=names, units=units)
    for found, name in zip(told["results"], names, strict=True):
        a = whence.explain(sentiment, REVIEW, method=name)
        a = a.merge_words() if units == "words" else a
        assert torch.equal(numbers(found["values"]).float(), a.values[0])  # to the last bit
        plain = torch.tensor(a.special[0])
        mass = a.values[0].double().abs()
        shares = torch.where(plain, 0.0, a.values[0].double() / mass[~plain].sum())
        assert numbers(found["shares"]) == pytest.approx(shares, abs=1e-7)
        assert found["aside"] == pytest.approx(float(mass[plain].sum() / mass.sum()), abs=1e-9)
        assert found["signed"] == (name in ("integrated_gradients", "attnlrp"))
        assert found["gap"] == (None if a.gap is None else pytest.approx(float(a.gap[0])))
    assert " % of the values of this row lies on special tokens" in told["results"][2]["warnings"][0]
    c = whence.Comparison({n: whence.explain(sentiment, REVIEW, method=n).merge_words() for n in names[:2]})
    if units == "words":  # special tokens have a small part in these, which the page leaves out
        assert told["done"]["common"][0][1] == pytest.approx(float(c.agreement()[0, 1]), abs=0.02)


@pytest.mark.parametrize("named", ["lrp_gamma", "LRP z-plus", "ig"])
def test_methods_by_other_names_are_those_of_explain(server: Server, sentiment: Any, named: str) -> None:
    """With the parameters that the name stands for, and those that are given under it."""
    options = {"steps": 3} if named == "ig" else {}
    told = server.ask(kind="explain", model="zoo:sentiment", input={"text": REVIEW}, units="tokens", target=1,
                      methods=[named], options={named: options})["results"][0]  # fmt: skip
    a = whence.explain(sentiment, REVIEW, method=named, target=1, progress=False, **options)
    assert told["method"] == a.method
    assert told["values"] == pytest.approx(a.values[0].tolist(), rel=1e-5, abs=1e-7)


def test_pairs_are_explained(server: Server, sentiment: Any) -> None:
    row = ("A dull film.", "Never funny!")
    body = {"model": "zoo:sentiment", "input": {"text": row[0], "pair": row[1]}}
    (found,) = server.ask(kind="explain", **body, methods=["deeplift"])["results"]
    expected = whence.explain(sentiment, [row], method="deeplift").merge_words()
    assert torch.equal(numbers(found["values"]).float(), expected.values[0])
    assert [unit["text"] for unit in found["units"] if unit["segment"] == 1 and not unit["special"]] == [
        "Never", "funny", "!",
    ]  # fmt: skip


def test_images_are_explained_as_by_explain(server: Server) -> None:
    model = whence.load("zoo:fashion-vit")
    names = ["integrated_gradients", "transformer_attribution"]
    told = server.ask(kind="explain", model="zoo:fashion-vit", input={"example": 2}, methods=names)
    with open(model.examples[2], "rb") as file:
        sent = {"image": base64.b64encode(file.read()).decode()}
    again = server.ask(kind="explain", model="zoo:fashion-vit", input=sent, methods=names)
    for found, other, name in zip(told["results"], again["results"], names, strict=True):
        a = whence.explain(model, model.examples[2], method=name)
        grid = a.values[0].sum(0) if a.values.dim() == 4 else a.values[0]
        assert found["shape"] == list(grid.shape)
        assert numbers(found["values"]) == pytest.approx(grid.flatten().double(), rel=1e-6, abs=1e-9)
        assert other["values"] == found["values"]


def test_molecules_are_explained(tmp_path: Any) -> None:
    pytest.importorskip("rdkit")
    from tests.support.server import served

    model = whence.load("zoo:molecules")
    with served(tmp_path, "--model", "zoo:molecules") as own:
        body = {"model": "zoo:molecules", "input": {"smiles": "CC(=O)O"}, "target": "NR-AhR"}
        (found,) = own.ask(kind="explain", **body, methods=["deeplift"])["results"]
        seen = own.post("/api/predict", body)
    a = whence.explain(model, "CC(=O)O", method="deeplift", target="NR-AhR")
    atoms, pairs = a.values["atoms"][0], a.values["pairs"][0]
    bonds = [pairs[i, j] + pairs[j, i] for i, j in (bond["atoms"] for bond in seen["molecule"]["bonds"])]
    assert torch.equal(numbers(found["values"]).float(), torch.cat([atoms, torch.stack(bonds)]))
    assert [unit["text"] for unit in found["units"]] == ["C0", "C1", "O2", "O3", "C0–C1", "C1–O2", "C1–O3"]
    assert [atom["symbol"] for atom in seen["molecule"]["atoms"]] == ["C", "C", "O", "O"]


def test_what_is_kept_is_told_apart_by_everything_that_was_asked(server: Server) -> None:
    """Answers are kept for the next question; another target, text, model or parameter is another answer."""
    base = {"kind": "explain", "model": "zoo:questions", "input": {"text": "Who wrote it?"}, "methods": ["deeplift"]}
    rules = [{"options": {"deeplift": {"rule": rule}}} for rule in ("reveal_cancel", "rescale")]
    bodies = [
        base, {**base, "target": 0}, {**base, "target": 1}, {**base, "input": {"text": "Who wrote them?"}},
        {**base, "input": {"text": "Who", "pair": "wrote?"}}, {**base, "model": "zoo:sentiment"},
        *({**base, **rule} for rule in rules),
    ]  # fmt: skip
    first = [server.post("/api/ask", body)["results"][0]["values"] for body in bodies]
    again = [server.post("/api/ask", body)["results"][0]["values"] for body in reversed(bodies)]
    assert first == again[::-1]
    assert first[0] == first[-1]  # which is the default
    assert len({json.dumps(values) for values in first[:6]}) == 6


# ---- questions ----


def test_removed_words_change_the_score_as_the_model_says(server: Server, sentiment: Any) -> None:
    body = {"model": "zoo:sentiment", "input": {"text": REVIEW}, "target": "negative"}
    units = server.post("/api/predict", body)["units"]
    gone = [i for i, unit in enumerate(units) if unit["text"] in ("clumsy", "unforgettable")]
    names = ["integrated_gradients", "gradient"]
    (found,) = server.ask(kind="remove", **body, methods=names, removed=gone)["results"]
    ids = sentiment.tokenizer(REVIEW, return_tensors="pt")
    words = whence.explain(sentiment, REVIEW, method="random").words[0]
    keep = torch.tensor([word not in (2, 7) for word in words])
    with torch.no_grad():
        before, after = (
            sentiment.model(**{name: value[:, which] for name, value in ids.items()}).logits[0].double()
            for which in (slice(None), keep)
        )
    assert found["change"] == pytest.approx(float(after[0] - before[0]), abs=1e-4)
    assert [one["probability"] for one in found["after"]] == pytest.approx(after.softmax(0).tolist(), abs=1e-5)
    a = whence.explain(sentiment, REVIEW, method="integrated_gradients", target="negative").merge_words()
    assert found["expected"]["integrated_gradients"]["change"] == pytest.approx(
        -float(a.values[0, gone].sum()), abs=1e-5
    )
    assert found["expected"]["gradient"]["change"] is None
    assert found["expected"]["gradient"]["why"] == "Slopes are not parts of the score."
    assert server.refused("POST", "/api/ask", {"kind": "remove", **body, "removed": [99]})[1] == "InputError"


def test_removed_patches_are_set_to_zero(server: Server) -> None:
    model = whence.load("zoo:fashion-cnn")
    body = {"model": "zoo:fashion-cnn", "input": {"example": 0}}
    assert server.post("/api/predict", body)["image"]["patches"] == [7, 7]
    (found,) = server.ask(kind="remove", **body, removed=[8, 9], methods=["occlusion", "deeplift"])["results"]
    assert found["expected"]["occlusion"]["change"] is None
    own = whence.explain(model, model.examples[0], method="deeplift").values[0, 0, 4:8, 4:12].sum()
    assert found["expected"]["deeplift"]["change"] == pytest.approx(-float(own), rel=1e-4)
    (request,) = model.requests([model.examples[0]], None)
    pixels = (request.inputs["pixel_values"] if isinstance(request.inputs, dict) else request.inputs).clone()
    pixels[..., 4:8, 4:12] = 0  # the second row's second and third patch of 4 × 4 pixels
    with torch.no_grad():
        expected = model.model(pixels)[0].double().softmax(0)
    assert [one["probability"] for one in found["after"]] == pytest.approx(expected.tolist(), abs=1e-5)


def test_deletion_curves_are_those_of_compare(server: Server, sentiment: Any) -> None:
    names = ["integrated_gradients", "attnlrp"]
    body = {"model": "zoo:sentiment", "input": {"text": REVIEW}}
    (found,) = server.ask(kind="deletion", **body, methods=names)["results"]
    own = {name: whence.explain(sentiment, REVIEW, method=name) for name in names}
    (check,) = checked(sentiment, REVIEW, own, steps=48, draws=10)
    assert found["places"] == list(check.places)
    for name in names:
        assert found["curves"][name] == pytest.approx(check.curves[name], abs=1e-9)
    assert found["random"]["mean"] == pytest.approx(check.random[0], abs=1e-9)
    units = server.post("/api/predict", body)["units"]
    for name in names:
        told = [" ".join(units[i]["text"] for i in group) for group in found["orders"][name]]
        assert told == found["names"][name]
        assert told[0] == check.first[name]
        assert sorted(told) == sorted(unit["text"] for unit in units if not unit["special"])


def test_attention_is_the_models_own(server: Server, sentiment: Any) -> None:
    body = {"model": "zoo:sentiment", "input": {"text": REVIEW}}
    sentiment.model.set_attn_implementation("eager")
    with torch.no_grad():
        maps = sentiment.model(**sentiment.tokenizer(REVIEW, return_tensors="pt"), output_attentions=True).attentions
    (one,) = server.ask(kind="attention", **body, layer=0, head=2)["results"]
    assert np.allclose(one["rows"], maps[0][0, 2], atol=1e-4)
    (mean,) = server.ask(kind="attention", **body)["results"]
    assert np.allclose(mean["rows"], maps[-1][0].mean(0), atol=1e-4)
    assert (one["layers"], one["heads"]) == (2, [4, 4])
    assert one["tokens"][0]["text"] == "[CLS]"
    assert server.refused("POST", "/api/ask", {"kind": "attention", **body, "layer": 9})[0] == 422


# ---- models that write ----


def test_an_answer_is_written_and_explained(server: Server, language: Any) -> None:
    body = {"model": "zoo:language", "input": {"prompt": "the film is a"}}
    (written,) = server.ask(kind="generate", **body, tokens=5)["results"]
    own = language.complete("the film is a", 5)
    assert (written["answer"], written["ids"]) == (str(own), own.ids)
    first = written["tokens"][0]
    seen = server.post("/api/predict", body)
    assert seen["chosen"] == first["id"] == own.ids[0]
    assert [one["index"] for one in seen["classes"]][:8] == [one["id"] for one in first["alternatives"]]
    assert seen["classes"][0]["probability"] == pytest.approx(first["probability"], abs=1e-6)
    (found,) = server.ask(kind="explain", **body, target=own.ids, methods=["attnlrp"])["results"]
    a = whence.explain(language, "the film is a", method="attnlrp", target=own)
    assert torch.equal(numbers(found["values"]).float(), a.values[0])
    assert [target["label"] for target in found["targets"]] == a.labels[0]
    assert [unit["part"] for unit in found["units"]] == ["text"] * 4 + ["written"] * 4
    probability = a.receipt["probability"][0]
    assert [token["probability"] for token in written["tokens"]] == pytest.approx(probability, abs=1e-6)


def test_why_this_token_and_not_another(server: Server, language: Any) -> None:
    body = {"model": "zoo:language", "input": {"prompt": "the film is a"}}
    ids = language.complete("the film is a", 3).ids
    other = language.tokenizer(" good")["input_ids"][-1]
    asked = {**body, "target": ids, "contrast": {"token": 1, "instead": other}}
    told = server.ask(kind="explain", **asked, methods=["input_x_gradient", "transformer_attribution"])
    (found,) = told["results"]
    both = [
        whence.explain(language, "the film is a", method="input_x_gradient",
                       target=Continuation(language.tokenizer.decode([ids[0], last]), [ids[0], last])).values[0, 1]
        for last in (ids[1], other)
    ]  # fmt: skip
    assert torch.allclose(numbers(found["values"]).float(), both[0] - both[1], atol=1e-6)
    assert told["failed"][0]["method"] == "transformer_attribution"
    assert "Is not linear in the score" in told["failed"][0]["error"]


def test_a_prompt_without_some_tokens(server: Server, language: Any) -> None:
    ids = language.complete("the film is a", 2).ids
    body = {"model": "zoo:language", "input": {"prompt": "the film is a"}, "target": ids}
    (found,) = server.ask(kind="remove", **body, removed=[1], methods=["integrated_gradients"])["results"]
    prompt = language.tokenizer("the film is a")["input_ids"]
    with torch.no_grad():
        rows = [
            language.model(torch.tensor([[*some, ids[0]]])).logits[0, -2:].double()
            for some in (prompt, [prompt[0], *prompt[2:]])
        ]
    for told, row in zip((found["before"], found["after"]), rows, strict=True):
        p = row.softmax(-1)[[0, 1], ids]
        assert [one["probability"] for one in told] == pytest.approx(p.tolist(), abs=1e-5)
    assert len(found["expected"]["integrated_gradients"]["change"]) == 2
    assert server.refused("POST", "/api/ask", {"kind": "remove", **body, "removed": [4]})[0] == 422
    (curve,) = server.ask(kind="deletion", **body, methods=["gradient"])["results"]
    whole = torch.tensor([one["probability"] for one in found["before"]]).log().mean().exp()
    assert curve["curves"]["gradient"][0] == pytest.approx(float(whole), rel=1e-4)


def test_a_translation_is_explained_by_source_and_what_was_written(server: Server) -> None:
    model = whence.load("zoo:translation")
    text = model.examples[0]
    body = {"model": "zoo:translation", "input": {"text": text}}
    (found,) = server.ask(kind="explain", **body, methods=["attnlrp"])["results"]
    a = whence.explain(model, text, method="attnlrp")
    expected = torch.cat([a.values["input_ids"][0], a.values["decoder_input_ids"][0]], -1)
    assert torch.equal(numbers(found["values"]).float(), expected)
    assert {unit["part"] for unit in found["units"]} == {"source", "written"}
    (written,) = server.ask(kind="generate", **body)["results"]
    assert written["answer"] == str(model.complete(text))
    assert server.ask(kind="remove", **body, removed=[0])["results"]
    rows = server.ask(kind="attention", **body)["results"][0]["rows"]
    assert all(sum(row) == pytest.approx(1, abs=1e-2) for row in rows)


# ---- the documentation ----


def test_the_api_is_described(server: Server) -> None:
    described = server.get("/openapi.json")
    assert {"/api/models", "/api/predict", "/api/ask", "/api/jobs", "/api/export", "/api/run/rows"} <= set(
        described["paths"]
    )
    assert all(one.get("description") for path in described["paths"].values() for one in path.values())
    _, _, content = server.send("GET", "/docs")
    text = content.decode()
    for path in described["paths"]:
        assert path in text
    for name in ("Ask", "Input", "Export"):
        assert f'id="{name}"' in text
