"""What is drawn: every kind of row on a page, in a notebook, on axes and in a terminal; hostile text stays text."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
import torch

import whence
from tests.support.browser import chromium
from tests.support.pages import HOSTILE, attribution, text_attribution
from whence.views import images, rows_html
from whence.views.colours import share, solid, wash
from whence.views.export import plain, write
from whence.views.maps import maps, percent

# ---- hostile text ----


@pytest.mark.parametrize("bad", HOSTILE)
def test_hostile_text_is_text_everywhere(bad, tmp_path, capsys):
    a = text_attribution(["fine", bad, "end"], label=bad)
    bare = replace(a, spans=None, text=None)
    generated = attribution(
        torch.randn(1, 2, 3), units=[["a", bad, "c"]], output_value=torch.ones(1, 2), target=torch.zeros(1, 2),
        labels=[[bad, "x"]],
    )  # fmt: skip
    tabular = attribution(torch.randn(1, 3), labels=[bad])
    for one in (a, bare, generated, tabular):
        for page in (one.to_html(title=bad), one._repr_html_(), whence.Comparison({bad: one}).to_html()):
            assert "<script" not in page
            assert "<img src=x" not in page
            assert "<svg onload" not in page
            assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", page)
        one.show()
        assert "\x1b" not in capsys.readouterr().out
        assert json.loads(json.dumps(plain(one)))
    pytest.importorskip("matplotlib")
    write(a, tmp_path / "a.svg")
    svg = (tmp_path / "a.svg").read_text()
    assert "<script" not in svg
    assert "<img" not in svg


def test_nothing_runs_in_a_browser(tmp_path):
    rows = [text_attribution(["fine", bad, "end"], label=bad) for bad in HOSTILE]
    sections = "".join(a._repr_html_() for a in rows)
    page = tmp_path / "page.html"
    page.write_text(whence.Comparison(dict(zip(HOSTILE, rows, strict=True))).to_html(title="still") + sections)
    dom, console, outside = chromium(page, tmp_path, "--dump-dom")
    assert "<title>still</title>" in dom
    assert "<script" not in dom
    assert console == ""
    assert outside == []


def test_a_script_that_does_run_would_be_noticed(tmp_path):
    """The check above can fail."""
    page = tmp_path / "page.html"
    page.write_text(
        "<title>still</title><img src='http://127.0.0.1:9/x.png'>"
        "<script>document.title='run'; console.error('noticed')</script>"
    )
    dom, console, outside = chromium(page, tmp_path, "--dump-dom")
    assert "<title>run</title>" in dom
    assert "noticed" in console
    assert outside[0] == "http://127.0.0.1:9/x.png"


# ---- texts ----


def test_a_text_keeps_its_letters_and_colours_its_words():
    a = text_attribution(["Good", "film"], torch.tensor([[1.0, -0.5]]), text="Good,  film!\nSecond line")
    page = a._repr_html_()
    assert "Second line" in page
    assert f'title="Good: +1" style="background:{wash(1.0)}' in page
    assert f'title="film: -0.5" style="background:{wash(-0.5)}' in page
    plain_text = re.sub(r"<[^>]+>", "", page.split("<p dir")[1].split("</p>")[0]).partition(">")[2]
    assert plain_text == "Good,  film!\nSecond line"


def test_right_to_left_texts_say_so_themselves():
    assert 'dir="auto"' in text_attribution(["שלום", "עולם"])._repr_html_()


def test_long_texts_fold():
    words = [f"w{i}" for i in range(300)]
    assert "<details" in text_attribution(words)._repr_html_()
    assert "<details" not in text_attribution(words[:50])._repr_html_()


def test_pairs_are_two_paragraphs():
    one = text_attribution(["a", "b"])
    pair = replace(one, text=[("a", "b")], spans=[[(0, 1), (0, 1)]], segments=[[0, 1]])
    assert pair._repr_html_().count('<p dir="auto"') == 2


def test_a_report_of_many_methods_and_a_long_text_is_small():
    words = [f"word{i}" for i in range(512)]
    c = whence.Comparison({f"m{i}": text_attribution(words, torch.randn(1, 512)) for i in range(12)})
    page = c.to_html()
    assert len(page.encode()) < 3e6
    assert len(re.findall(r"<[a-z]", page)) < 60_000  # what a browser scrolls without stumbling


def test_many_maps_are_pictures_so_that_their_page_scrolls():
    written = [f"w{i}" for i in range(79)]
    tokens = {"units": [written], "output_value": torch.ones(1, 79), "target": torch.zeros(1, 79), "labels": [written]}
    for one in (attribution(torch.randn(12, 28, 28)), attribution(torch.randn(1, 79, 79), **tokens)):
        page = whence.Comparison({f"m{i}": one for i in range(12)}).to_html()
        assert len(page.encode()) < 3e6
        assert len(re.findall(r"<[a-z]", page)) < 60_000


def test_a_method_that_ranks_nothing_agrees_with_none():
    words = ["a", "b", "c"]
    flat = text_attribution(words, torch.zeros(1, 3))
    c = whence.Comparison({"one": text_attribution(words), "flat": flat})
    found = c.agreement()
    assert float(found[0, 0]) == pytest.approx(1)
    assert found.isnan().tolist() == [[False, True], [True, True]]
    page = c.to_html()
    assert page.count(">–</td>") == 5  # the diagonal, the pair, and chance with each
    assert "%</td>" not in page
    both = attribution(torch.tensor([[0.0, 0.0], [1.0, 2.0]]))  # the row that ranks nothing takes no part
    assert float(whence.Comparison({"x": both}).agreement()) == pytest.approx(1)


# ---- images ----


def test_pictures_by_hand():
    image = torch.full((3, 4, 4), 200, dtype=torch.uint8)
    grid = torch.zeros(2, 2)
    grid[0, 0], grid[1, 1] = 1.0, -0.5
    masked = images.masked(image, grid)
    assert masked[0, 0].tolist() == [200, 200, 200]
    assert masked[0, 3].tolist() == [0, 0, 0]
    assert masked[3, 3, 0] == round(200 * 0.5**0.5)
    red = images.one_side(image, grid, 1)
    assert red[0, 0].tolist() == [194, 68, 14]
    assert red[3, 3].tolist() == [255, 255, 255]
    assert images.one_side(image, grid, -1)[0, 0].tolist() == [255, 255, 255]
    line = images.contour(image, grid, 0.25)
    assert line.shape == (224, 224, 3)  # enlarged, so that the line is thin
    assert line[0, 111].tolist() == [200, 200, 200]  # inside
    assert line[0, 112].tolist() == line[0, 113].tolist() == [194, 68, 14]  # the edge
    assert line[0, 114].tolist() == line[223, 223].tolist() == [200, 200, 200]
    assert images.contour(torch.zeros(3, 300, 200, dtype=torch.uint8), grid).shape == (300, 200, 3)


def test_one_side_has_no_paper_and_an_empty_one_says_so():
    image = torch.full((1, 3, 4, 8), 200, dtype=torch.uint8)
    grid = torch.zeros(2, 2)
    grid[0, 0] = 1.0
    thin = images.thin_side(image[0], grid, 1)
    assert thin[0, 0].tolist() == [194, 68, 14, 255]
    assert thin[3, 7, 3] == 0
    assert images.thin_side(image[0], grid, -1) is None
    page = attribution(grid[None], image=image, image_size=(4, 8))._repr_html_()
    assert page.count(">nothing</div><figcaption") == 1
    assert "aspect-ratio:8/4" in page
    assert page.count("<figure") == 6


def test_pngs_can_be_read():
    import base64
    import io

    image = pytest.importorskip("PIL.Image")
    pixels = torch.randint(0, 256, (5, 7, 3))
    address = images.png(pixels)
    found = image.open(io.BytesIO(base64.b64decode(address.split(",")[1])))
    assert torch.equal(torch.tensor(list(found.tobytes())).view(5, 7, 3), pixels)
    clear = torch.randint(0, 256, (5, 7, 4))
    found = image.open(io.BytesIO(base64.b64decode(images.png(clear).split(",")[1])))
    assert found.mode == "RGBA"
    assert torch.equal(torch.tensor(list(found.tobytes())).view(5, 7, 4), clear)
    palette = image.open(
        io.BytesIO(base64.b64decode(images.palette_png(torch.tensor([[1.0, -1.0, 0.0]])).split(",")[1]))
    )
    assert [palette.convert("RGB").getpixel((x, 0)) for x in range(2)] == [(194, 68, 14), (31, 101, 176)]


def test_an_image_keeps_its_picture():
    pytest.importorskip("transformers")
    zoo = whence.load("zoo:fashion-cnn")
    a = whence.explain(zoo, zoo.examples[:2], method="gradient")
    assert a.image.shape == (2, 1, 28, 28)
    from PIL import Image

    assert torch.equal(a.image[1, 0].long(), torch.tensor(list(Image.open(zoo.examples[1]).tobytes())).view(28, 28))
    assert a[1].image.shape == (1, 1, 28, 28)
    assert a.to_html().count("<figure") == 12


# ---- numbers ----


def test_the_scale():
    assert solid(0.0) == "#ffffff"
    assert solid(1.0) == "#c2440e"
    assert solid(-1.0) == "#1f65b0"
    assert share(float("nan"), 1.0) == 0.0
    assert share(5.0, 0.0) == 0.0
    assert share(-5.0, 2.0) == -1.0


def test_bars_reach_from_the_baseline_to_the_score():
    model = torch.nn.Linear(3, 1)
    a = whence.explain(model, torch.randn(1, 3), method="integrated_gradients", target=0)
    page = a._repr_html_()
    assert page.count("<i style") == 5  # baseline, three steps, score
    assert f"{float(a.output_value[0]):.4g}" in page


def test_attention_by_layer_and_head():
    transformers = pytest.importorskip("transformers")
    del transformers
    zoo = whence.load("zoo:sentiment")
    a = whence.explain(zoo, "a fine film", method="rollout", keep=("attention",))
    page = a._repr_html_()
    assert page.count('alt="layer') == len(a.kept["attention"]) * a.kept["attention"][0].shape[1]
    assert "a ← fine" in page


def test_relevance_is_on_the_page():
    zoo = whence.load("zoo:questions")
    assert "Relevance from layer to layer" in whence.explain(zoo, "Who?", method="lrp").to_html()


# ---- axes ----


@pytest.mark.parametrize(
    ("name", "number", "target"),
    [("sentiment", 0, None), ("fashion-vit", 0, None), ("fashion-cnn", 0, None), ("translation", 3, None),
     ("language", 0, "good film"), ("molecules", 2, "NR-AhR")],
)  # fmt: skip
def test_every_kind_plots_and_pages(name, number, target, tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    if name == "molecules":
        pytest.importorskip("rdkit")
    zoo = whence.load(f"zoo:{name}")
    a = whence.explain(zoo, zoo.examples[number], method="integrated_gradients", target=target)
    axes = a.plot()
    axes.figure.savefig(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 3000
    matplotlib.pyplot.close(axes.figure)
    page = a.to_html()
    fits = {"sentiment": 'dir="auto"', "translation": "<h4>source</h4>", "language": "←", "molecules": "<svg role"}
    assert fits.get(name, "data:image/png") in page
    for ending in ("png", "svg", "csv", "json", "html"):
        write(a, tmp_path / f"a.{ending}")
    write(a, tmp_path / "a.safetensors")
    assert whence.Attribution.load(tmp_path / "a.safetensors").to_html() == page
    told = json.loads((tmp_path / "a.json").read_text())
    assert sum(len(m["values"]) for row in told["rows"] for m in row["maps"]) == sum(
        part.values.numel() for part in maps(a, 1)
    )


def test_a_plot_of_a_translation_has_both_texts(capsys):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    values = {"input_ids": torch.randn(1, 2, 3), "decoder_input_ids": torch.randn(1, 2, 2)}
    units = {"input_ids": [["Vielen", "▁Dank", "."]], "decoder_input_ids": [["[CLS]", "▁Thank"]]}
    a = attribution(
        values, output_value=torch.ones(1, 2), target=torch.zeros(1, 2), labels=[["▁Thank", "you"]], units=units
    )
    axes = a.plot()
    assert [t.get_text() for t in axes.get_xticklabels()] == ["Vielen", "Dank", ".", "[CLS]", "Thank"]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["Thank", "you"]
    assert axes.get_title("left") == "source | written so far"
    shown = axes.images[0].get_array()
    assert shown.shape == (2, 6)
    assert shown.mask[:, 3].all()  # a blank between them
    pyplot.close(axes.figure)
    page = a._repr_html_()
    assert "▁" not in page
    assert page.count("<table") == 2
    assert "<h4>source</h4>" in page
    assert "<h4>written so far</h4>" in page
    a.show()
    told = capsys.readouterr().out
    assert "  Thank (1) ← source: " in told
    assert "  Thank (1) ← written so far: " in told
    assert "▁" not in told
    assert {m["input"] for m in plain(a)["rows"][0]["maps"]} == {"input_ids", "decoder_input_ids"}  # data keep names


@pytest.mark.parametrize("sign", "Ġ▁")
def test_signs_for_spaces_are_not_shown(sign, capsys, monkeypatch):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    units = [f"{sign}a", f"{sign}film"]
    a = attribution(
        torch.randn(1, 2), units=[units], labels=[f"{sign}good"], kept={"attention": [torch.rand(1, 2, 2, 2)]}
    )
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    a.show()
    axes = a.plot()
    drawn = [axes.get_title("left"), *(t.get_text() for t in axes.texts)]
    pyplot.close(axes.figure)
    for told in (capsys.readouterr().out, a.to_html(), whence.Comparison({"x": a}).to_html(), *drawn):
        assert sign not in told
    assert drawn == ["good, score 1", "a", "film"]
    assert a.top(1)[0][0][0] in units  # data keep them


def test_a_saved_file_with_a_field_of_another_form_is_damaged(tmp_path):
    """Whatever stands in the header: it is named as damaged, or what was read can be shown."""
    safetensors = pytest.importorskip("safetensors")
    from safetensors.torch import load_file, save_file

    path = tmp_path / "a.safetensors"
    text_attribution(["a", "b", "c"]).save(path)
    with safetensors.safe_open(path, "pt") as file:
        header = file.metadata()
    tensors = load_file(path)
    content = json.loads(header["content"])
    forms = [
        None, 1, "x", [], {}, {"tensor": "values"}, {"tensor": 1}, {"list": [1, 2]}, {"list": []}, {"a": 1, "b": 2},
        {"list": [{"list": []}]}, {"dict": [["a", 1]]}, {"dict": [1]}, {"tuple": [{"tensor": "values"}]}, float("inf"),
    ]  # fmt: skip
    damaged = 0
    for name in content:
        for form in forms:
            save_file(tensors, path, {**header, "content": json.dumps({**content, name: form})})
            try:
                found = whence.Attribution.load(path)
            except whence.FileError as error:
                assert "is damaged" in str(error)  # noqa: PT017
                damaged += 1
            else:
                found.to_html()
    assert damaged > 100
    with pytest.raises(whence.FileError, match="is a folder.\n.*save"):
        whence.Attribution.load(tmp_path)
    save_file(tensors, path, {"form": "something else"})
    with pytest.raises(whence.FileError, match="not an attribution.*'something else'.*\n.*save"):
        whence.Attribution.load(path)


def test_plot_draws_where_it_is_told_and_shows_nothing(monkeypatch):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.setattr(pyplot, "show", lambda *a, **k: pytest.fail("shown"))
    figure, axis = pyplot.subplots()
    a = text_attribution(["$x$", "_y_"])
    assert a.plot(axis) is axis
    assert {"$x$", "_y_"} <= {t.get_text().replace("\\", "") for t in axis.texts}
    pyplot.close(figure)
    with pytest.raises(whence.InputError, match="no row 3"):
        a.plot(row=3)
    with pytest.raises(whence.InputError, match="no target 1"):
        a.plot(target=1)


def test_styles_of_an_image(monkeypatch):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    zoo = whence.load("zoo:fashion-cnn")
    a = whence.explain(zoo, zoo.examples[0], method="gradient")
    for style in ("overlay", "masked", "positive", "negative", "contour"):
        pyplot.close(a.plot(style=style).figure)
    with pytest.raises(whence.ParameterError, match="style='x'"):
        a.plot(style="x")


def test_one_table_of_units(monkeypatch):
    import sys
    from types import SimpleNamespace

    padded = text_attribution(["a", "b", "c"], torch.tensor([[1.0, -3.0, 9.0]]))
    a = replace(padded, real=torch.tensor([[True, True, False]]))
    assert a.top(5) == [[("b", -3.0), ("a", 1.0)]]  # padding is left out
    image = attribution(torch.arange(6.0).view(1, 2, 3))
    assert image.top(2) == [[((1, 2), 5.0), ((1, 1), 4.0)]]
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    assert [line["unit"] for line in a.to_pandas()] == ["a", "b"]
    assert image.to_pandas()[4] == {"row": 0, "unit": (1, 1), "value": 4.0}
    several = attribution(torch.ones(1, 2, 1), output_value=torch.ones(1, 2), target=torch.tensor([[7, 8]]))
    assert [(line["target"], line["unit"]) for line in several.to_pandas()] == [("7", 0), ("8", 0)]


def test_one_table_of_kinds():
    a = attribution(torch.randn(2, 3, 5, 5))
    assert rows_html.row(a, list(maps(a, 1))).count("<figure") == 1
    assert "grid" in rows_html.row(attribution(torch.randn(1, 500)), list(maps(attribution(torch.randn(1, 500)), 1)))


def test_units_that_are_left_out_are_counted(capsys):
    text_attribution([f"w{i}" for i in range(14)]).show()
    assert "  … and 4 more" in capsys.readouterr().out.splitlines()
    text_attribution([f"w{i}" for i in range(10)]).show()
    assert "more" not in capsys.readouterr().out
    padded = replace(text_attribution([f"w{i}" for i in range(12)]), real=torch.tensor([[True] * 11 + [False]]))
    padded.show()
    assert "… and 1 more" in capsys.readouterr().out


def test_atoms_that_are_left_out_are_counted():
    pytest.importorskip("rdkit")
    zoo = whence.load("zoo:molecules")
    for smiles, more in {"CCO": None, "c1ccccc1CCCO": 2}.items():
        page = whence.explain(zoo, smiles, method="gradient", target="NR-AhR").to_html()
        assert (f"… and {more} more</p>" in page) == (more is not None)


@pytest.mark.parametrize(
    ("output", "told"), [("logit", "logit"), ("probability", "probability"), ("log_probability", "log-probability")]
)
def test_what_the_score_is_and_of_which_model(output, told, capsys):
    zoo = whence.load("zoo:questions")
    a = whence.explain(zoo, ["Who?", "How many of them are there?"], method="integrated_gradients", output=output)
    number = float(a.output_value[0])
    page = a.to_html()
    beside = "" if output == "probability" else f", probability {100 * a.receipt['probability'][0]:.1f} %"
    before = f" (baseline: {100 * a.receipt['baseline_probability'][0]:.1f} %)"
    assert f"Row 0: HUMAN, {told} {number:.4g}{beside}{before}</h3>" in page
    assert "Model: <b>zoo:questions</b>." in page
    a.show()
    assert f"target HUMAN, {told} {number:.4g}{beside}{before}" in capsys.readouterr().out
    c = whence.Comparison({"x": a})
    assert f"{told} of row 0" in str(c)
    assert "Model: <b>zoo:questions</b>." in c.to_html()
    assert plain(a)["model"] == "zoo:questions"
    pyplot = pytest.importorskip("matplotlib.pyplot")
    axes = a.plot()
    assert axes.get_title("left") == f"HUMAN, {told} {number:.4g}{beside}"
    pyplot.close(axes.figure)


def test_the_score_of_a_function_and_the_name_of_a_module():
    model = torch.nn.Linear(3, 2)
    a = whence.explain(model, torch.ones(1, 3), method="gradient", target=lambda y: y.sum(1))
    assert (a.receipt["output"], a.receipt["model"]) == ("score", "Linear")
    assert ", score " in a.to_html()
    page = whence.explain(lambda x: x @ torch.ones(3, 2), torch.ones(1, 3), method="gradient").to_html()
    assert "<b>&lt;lambda&gt;</b>" in page


def test_one_is_not_many(capsys):
    told = {"forward_passes": 1, "backward_passes": 2, "converged": [True, False]}
    a = attribution(torch.randn(5, 2), receipt=told)
    a.show()
    assert capsys.readouterr().out.endswith("… and 1 more row\n")
    assert "1 row did not reach the tolerance: the values are not converged.</p></div>" in a.to_html()
    assert "1 forward pass and 2 backward passes." in a.to_html()
    assert "1 more row is not shown" in attribution(torch.randn(13, 2)).to_html()
    assert "2 more rows are not shown" in attribution(torch.randn(14, 2)).to_html()


def test_warnings_stand_above_the_picture_in_every_view(capsys, tmp_path):
    told = {"forward_passes": 1, "backward_passes": 1, "warnings": ["gradient: a <b>\x1b", "second", "third"]}
    a = attribution(torch.randn(2, 3), receipt=told)
    page = a.to_html()
    box = page.index('role="note"')
    assert page.index("A &lt;b&gt;\\x1b</p>") > box
    assert box < page.index("<h3>Row 0")
    assert ">1 more</summary>" in page[box:]
    assert "Third" in page[box : page.index("<h3>Row 0")]
    assert a._repr_html_().index('role="note"') < a._repr_html_().index("<h3>Row 0")
    a.show()
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:4] == ["! A <b>\\x1b", "! Second", "! Third"]
    quiet = attribution(torch.randn(2, 3), receipt={**told, "warnings": []})
    both = whence.Comparison({"gradient": a, "quiet": quiet})
    assert str(both).startswith("! gradient: A <b>\\x1b\n")
    page = both.to_html()
    assert page.count('role="note"') == 2 * 3  # in each row, of which two stand open
    assert page.count(">1 more warning</summary>") == 2
    assert page.index("<b>A.</b> A &lt;b&gt;\\x1b</p>") < page.index('class="legend"')
    pyplot = pytest.importorskip("matplotlib.pyplot")
    axes = a.plot()
    assert [t.get_text() for t in axes.texts if t.get_text().startswith("Warning")]
    pyplot.close(axes.figure)


@pytest.mark.parametrize("p", [0.0, 1e-5, 0.5, 0.99999, 1.0])
def test_a_probability_never_looks_more_certain_than_it_is(p):
    assert percent(p) == {0.0: "0.0 %", 1e-5: "< 0.1 %", 0.5: "50.0 %", 0.99999: "> 99.9 %", 1.0: "100.0 %"}[p]


def test_probabilities_of_classes_wherever_they_stand():
    x = torch.randn(2, 3)
    weight = torch.randn(3, 4)
    found = whence.explain(lambda t: t @ weight, x, method="gradient")
    torch.testing.assert_close(torch.tensor(found.receipt["probability"]), (x @ weight).softmax(1).amax(1))
    given = whence.explain(lambda t: (t @ weight).softmax(1), x, method="gradient", target=1)
    torch.testing.assert_close(torch.tensor(given.receipt["probability"]), (x @ weight).softmax(1)[:, 1])
    dense = whence.explain(lambda t: (t @ weight)[:, :, None, None].expand(-1, -1, 2, 2), x, method="gradient",
                           target=(3, 1, 0))  # fmt: skip
    torch.testing.assert_close(torch.tensor(dense.receipt["probability"]), (x @ weight).softmax(1)[:, 3])
    tags = whence.explain(lambda t: (t @ weight)[:, None].expand(-1, 5, -1), x, method="gradient", target=(4, 2))
    torch.testing.assert_close(torch.tensor(tags.receipt["probability"]), (x @ weight).softmax(1)[:, 2])
    two = whence.explain(lambda t: t @ weight, x, method="gradient", target=torch.tensor([[0, 1], [2, 3]]))
    p = (x @ weight).softmax(1)
    torch.testing.assert_close(torch.tensor(two.receipt["probability"]), torch.stack([p[0, :2], p[1, 2:]]))
    for lone in (lambda t: t.sum(1), lambda t: t.sum(1, keepdim=True)):
        assert "probability" not in whence.explain(lone, x, method="gradient").receipt
    a_function = whence.explain(lambda t: t @ weight, x, method="gradient", target=lambda y: y[:, 0])
    assert "probability" not in a_function.receipt


def test_labels_that_do_not_exclude_each_other_have_a_sigmoid():
    pytest.importorskip("rdkit")
    zoo = whence.load("zoo:molecules")
    a = whence.explain(zoo, zoo.examples[:2], method="integrated_gradients", target="NR-AhR")
    torch.testing.assert_close(torch.tensor(a.receipt["probability"]), a.output_value.sigmoid(), check_dtype=False)
    before = torch.tensor(a.receipt["baseline_probability"])
    torch.testing.assert_close(before, a.baseline_value.sigmoid(), check_dtype=False)
