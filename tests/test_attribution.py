"""The result: rows, showing, saving."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

import whence
from tests.support.functions import W, explain
from tests.support.models import CASES, close
from whence.views.html import page, section
from whence.views.terminal import clean, table

HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "\x1b[31mred\x1b[0m", "‮reversed"]


def cnn() -> whence.Attribution:
    model, x = CASES["residual_cnn"].make()
    return whence.explain(model, x, method="guided_backprop")


def text() -> whence.Attribution:
    model, inputs = CASES["bert_sdpa"].make()
    return whence.explain(model, inputs, method="input_x_gradient")


def test_rows_are_kept_and_padding_is_dropped() -> None:
    a = text()
    assert len(a) == 3
    assert a.values.shape == (3, 7)
    assert [tuple(row.values.shape) for row in a] == [(1, 7), (1, 5), (1, 4)]
    assert a[-1].raw.shape == (1, 4, 16)
    assert a[1:].values.shape == (2, 7)
    assert bool((a.values[1, 5:] == 0).all())
    with pytest.raises(IndexError, match="Row 3 does not exist: there are 3 rows"):
        a[3]


def test_top() -> None:
    a = whence.explain(lambda x: x @ torch.tensor([[1.0], [-5.0], [3.0]]), torch.ones(1, 3), method="gradient")
    assert a.top(2) == [[(1, -5.0), (2, 3.0)]]
    best = cnn().top(1)[0][0]
    assert len(best[0]) == 3
    with pytest.raises(whence.InputError, match="one map per row"):
        whence.explain(lambda x: x, torch.ones(2, 3), method="gradient", target=[[0], [1]]).top()


def test_show_and_repr(capsys: pytest.CaptureFixture[str]) -> None:
    a = cnn()
    a.show()
    out = capsys.readouterr().out
    assert "Attribution(guided_backprop, 3 rows, values (3, 2, 9, 9))" in out
    assert "row 0: target" in out
    assert repr(a[0]) == "Attribution(guided_backprop, 1 row, values (1, 2, 9, 9))"
    model, x = CASES["smooth"].make()
    whence.explain(model, x, method="guided_backprop").show()
    assert "no rule, plain derivative: layer_norm, multiply, softmax" in capsys.readouterr().out
    whence.compare(model, x, methods=["gradient", "random"]).show()
    assert "vs random" in capsys.readouterr().out


def test_html_is_self_contained_and_escaped() -> None:
    a = cnn()
    html = a.to_html(title=HOSTILE[0])
    assert html.startswith("<!doctype html>")
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "http" not in html
    assert "color-scheme: light dark" in html
    assert "<svg" in a._repr_html_()
    import dataclasses

    hostile = dataclasses.replace(a, method=HOSTILE[1], target=HOSTILE[0])
    assert "<img" not in section(hostile)
    assert "\x1b" not in page(HOSTILE[2], [])
    several = whence.explain(lambda x: x, torch.ones(2, 3), method="gradient", target=[[0, 1], [1, 2]])
    assert several.to_html().count("<figure") == 4


@pytest.mark.parametrize("word", HOSTILE)
def test_the_terminal_gets_no_control_characters(word: str) -> None:
    shown = table(["a"], [[word]])
    assert "\x1b" not in shown
    assert "‮" not in clean(word)


# ---- files ----

MAKERS: dict[str, Any] = {
    "image": cnn,
    "text": text,
    "several": lambda: whence.explain(
        lambda x: x, torch.ones(2, 3), method="gradient", target=torch.tensor([[0, 1], [1, 2]])
    ),
    "dict": lambda: whence.explain(
        lambda a, b: (a * b).sum(1),
        {"a": torch.ones(2, 3), "b": torch.ones(2, 3)},
        method="gradient",
        baseline=0,
    ),
    "tuple": lambda: whence.explain(
        lambda a, b: (a * b).sum(1), (torch.ones(2, 3), torch.ones(2, 3)), method="gradient"
    ),
    "dense": lambda: whence.explain(lambda x: x[:, :, None], torch.ones(2, 3), method="gradient", target=(1, 0)),
    "function": lambda: whence.explain(lambda x: x, torch.ones(2, 3), method="gradient", target=lambda y: y[:, 0]),
    "bf16": lambda: whence.explain(lambda x: x, torch.eye(2, 3).bfloat16(), method="smoothgrad", samples=2, target=0),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_save_and_load_give_the_same(kind: str, tmp_path: Path) -> None:
    a = MAKERS[kind]()
    path = tmp_path / "a.safetensors"
    a.save(path)
    b = whence.Attribution.load(path)
    for name in a.__dataclass_fields__:
        assert same(getattr(a, name), getattr(b, name)), name


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.text(max_size=20))
def test_any_shape_and_any_text_survives(shape: list[int], word: str) -> None:
    import tempfile

    values = torch.arange(2 * torch.Size(shape).numel()).double().view(2, *shape)
    a = whence.Attribution(
        values,
        values,
        word,
        torch.ones(2),
        "gradient",
        {"p": word},
        {"n": [1, {"x": None}]},
        units=[[word], [word]],
    )
    with tempfile.TemporaryDirectory() as folder:
        a.save(Path(folder) / "a.safetensors")
        b = whence.Attribution.load(Path(folder) / "a.safetensors")
    assert all(same(getattr(a, name), getattr(b, name)) for name in a.__dataclass_fields__)


OPENS = {
    "html": b"<!doctype html>",
    "png": b"\x89PNG",
    "svg": b"<?xml",
    "pdf": b"%PDF",
    "json": b"{",
    "csv": b"method,",
}


@pytest.mark.parametrize("kind", OPENS)
def test_the_ending_says_what_is_written(kind: str, tmp_path: Path) -> None:
    if kind in ("png", "svg", "pdf"):
        pytest.importorskip("matplotlib")
    a = text()
    for name, found in {"a": a, "c": whence.Comparison({"x": a})}.items():
        path = tmp_path / f"{name}.{kind.upper()}"
        found.save(str(path))
        assert path.read_bytes().startswith(OPENS[kind])
    if kind == "json":
        assert json.loads((tmp_path / "a.JSON").read_text())["method"] == "input_x_gradient"


def test_an_ending_that_nobody_knows_is_an_error(tmp_path: Path) -> None:
    a = cnn()
    with pytest.raises(whence.ParameterError, match=r"a.pt' ends in none of html, png, .*, csv, safetensors"):
        a.save(tmp_path / "a.pt")
    with pytest.raises(whence.ParameterError, match="ends in none of html, png, svg, pdf, json, csv.\n"):
        whence.Comparison({"x": a}).save(tmp_path / "c.safetensors")
    with pytest.raises(whence.ParameterError, match="'' ends in none|c' ends in none"):
        whence.Comparison({"x": a}).save(tmp_path / "c")
    assert not list(tmp_path.iterdir())
    a.save(tmp_path / "a")  # without an ending: safetensors
    assert len(whence.Attribution.load(tmp_path / "a")) == len(a)


def test_pages_are_written_where_a_path_is_given(tmp_path: Path) -> None:
    a = cnn()
    for found in (a, whence.Comparison({"x": a})):
        page = found.to_html(tmp_path / "a.html", title="A title")
        assert (tmp_path / "a.html").read_text() == page
        assert "<title>A title</title>" in page
        with pytest.raises(whence.ParameterError, match=r"to_html\('A title'\) writes a page(.|\n)*title="):
            found.to_html("A title")


def test_a_picture_without_matplotlib_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(whence.ParameterError, match="A picture needs matplotlib, which is not installed"):
        cnn().save(tmp_path / "a.png")


def test_saving_follows_links_and_keeps_modes(tmp_path: Path) -> None:
    a, real, link = cnn(), tmp_path / "real", tmp_path / "a.safetensors"
    link.symlink_to(real)
    before = os.umask(0o027)
    try:
        a.save(link)
    finally:
        os.umask(before)
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    real.chmod(0o604)
    a.save(real)
    assert real.stat().st_mode & 0o777 == 0o604
    assert len(whence.Attribution.load(link)) == len(a)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.safetensors", "real"]


def test_saving_replaces_nothing_but_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for name in ("pipe", "link", ""):
        with pytest.raises(whence.FileError, match="cannot write .*: it exists and is not a regular file.\n.*Give"):
            cnn().save(tmp_path / name)
    assert (tmp_path / "pipe").is_fifo()
    with pytest.raises(whence.FileError, match="cannot write .*null"):
        cnn().save(tmp_path / "a\0b")


def test_foreign_cut_and_damaged_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with pytest.raises(whence.FileError, match="There is no file"):
        whence.Attribution.load(path)
    cnn().save(path)
    whole = path.read_bytes()
    for size in (0, 5, 100, len(whole) - 10):
        path.write_bytes(whole[:size])
        with pytest.raises(whence.FileError, match="not a readable safetensors file"):
            whence.Attribution.load(path)
    path.write_bytes(b"\x80\x04\x95 a pickle")
    with pytest.raises(whence.FileError, match="not a readable"):
        whence.Attribution.load(path)
    save_file({"x": torch.ones(1)}, path)
    with pytest.raises(whence.FileError, match="not an attribution that this version can read"):
        whence.Attribution.load(path)
    for content in ("{", json.dumps({"values": {"tensor": "gone"}}), json.dumps({"nonsense": 1}), "[]"):
        save_file({"x": torch.ones(1)}, path, metadata={"form": "whence.results.attribution.1", "content": content})
        with pytest.raises(whence.FileError, match="damaged"):
            whence.Attribution.load(path)
    with pytest.raises(whence.FileError):
        whence.Attribution.load(tmp_path)


def test_rows_by_any_integer_and_backwards() -> None:
    a = explain(lambda x: x @ W[:, :3])
    assert a[np.int64(1)].values.shape == a[torch.tensor(1)].values.shape == (1, 4)
    assert torch.equal(a[::-1].values, a.values.flip(0))


def test_agreement_leaves_padding_out_and_large_images_are_cheap() -> None:
    x = torch.randn(1, 3, 128, 128)
    c = whence.compare(lambda x: x.square().sum((1, 2, 3)), x, methods=["gradient", "random"])
    assert float(c.agreement()[0, 0]) == pytest.approx(1)
    assert len(c.to_html()) < 200_000
    table = nn.Embedding(60, 4).double()

    def model(input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return (table(input_ids).pow(3) * attention_mask[..., None]).sum((1, 2))

    ids = torch.arange(1, 7)[None]
    short = {"input_ids": ids, "attention_mask": torch.ones(1, 6).long()}
    long = {"input_ids": F.pad(ids, (0, 20)), "attention_mask": F.pad(torch.ones(1, 6).long(), (0, 20))}
    methods = ["gradient", "input_x_gradient"]
    a, b = (whence.compare(model, batch, methods=methods).agreement() for batch in (short, long))
    close(a, b, 1e-12)
