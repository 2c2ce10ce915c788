"""`whence demo`: one page, made once by the command itself and read in a browser."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import pytest

import whence
from tests.support.browser import chromium, scroll_width
from whence.cli import main
from whence.demo import CASES
from whence.views.families import FAMILIES, title_of
from whence.zoo import photos

pytest.importorskip("transformers")
PHOTOS = all(importlib.util.find_spec(name) is not None for name in (photos.CODE, photos.WEIGHTS))


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("name", ["d.txt", "d", "d.html.gz"])
def test_the_demo_is_a_page(name, capsys, tmp_path):
    code, _, err = run(capsys, "demo", "--out", str(tmp_path / name))
    assert code == 2
    assert "The demo is an HTML page" in err
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of `whence demo`, made once: it takes half a minute."""
    pytest.importorskip("rdkit")
    out = tmp_path_factory.mktemp("demo") / "demo.html"
    assert main(["demo", "--out", str(out)]) == 0
    return out


@pytest.mark.slow  # a page of one model stays in make test, below
@pytest.mark.xdist_group("demo")
def test_the_demo_writes_one_page_with_every_method(demo):
    html = demo.read_text()
    for name, entry in whence.methods.items():
        title = title_of(name)
        told = f'<span class="gone">{title}</span> takes a unit&#x27;s values' if entry.facts.get("permutes") else None
        assert told in html if told else f'code">{name}</span>' in html or f"<h3>{title}</h3>" in html, name
    for case in CASES:
        if case.model != "photos" or PHOTOS:
            assert f'id="{case.model}"' in html
    assert "<script" not in html
    assert set(re.findall(r'(?:src|href)="([a-z]+:|#)', html)) <= {"data:", "#"}
    assert set(re.findall(r"url\((.{15})", html)) <= {"data:image/png;"}


def of_case(demo: Path, name: str) -> str:
    """A case's part of the page."""
    return demo.read_text().split(f'id="{name}"')[1].split("</section></article>")[0]


@pytest.mark.slow
@pytest.mark.xdist_group("demo")
def test_the_demo_begins_with_a_photograph_and_ends_with_what_was_measured(demo):
    html = demo.read_text()
    places = [
        html.index(f'id="{name}"') for name in ("photos" if PHOTOS else "fashion-cnn", "sentiment", "fashion-vit")
    ]
    assert places == sorted(places)
    assert places[-1] < html.index('id="properties"') < html.index('id="scoreboard"')
    if PHOTOS:
        assert "Why “Egyptian cat”?" in of_case(demo, "photos")
    assert html.count("Does the model bear them out?") == len([case for case in CASES if case.check is not None])
    after = html[html.index('id="properties"') :]
    assert "yes → yes" in after
    assert "no → no" in after
    assert "comprehensiveness ↑" in after
    assert "<em>random</em>" in after


@pytest.mark.slow
@pytest.mark.xdist_group("demo")
def test_the_demo_shows_four_methods_first_and_the_rest_by_family(demo):
    sentence = of_case(demo, "sentiment")
    first, _, rest = sentence.partition("methods, by the question they ask")
    shown = re.findall(r'<article class="card"><header>.*?<h3>(.*?)</h3>', first)
    assert shown == ["Integrated gradients", "AttnLRP", "Shapley values", "Transformer attribution"]
    for family in re.findall(r'<details class="fold"><summary><b>(.*?)</b>', rest)[:-1]:
        assert family in FAMILIES
    assert 'code">random</span>' not in first
    assert 'code">random</span>' in rest


@pytest.mark.slow
@pytest.mark.xdist_group("demo")
def test_the_demo_tells_magnitudes_by_grey_and_in_the_small_print(demo):
    lines = of_case(demo, "sentiment").split("<tr><td>")
    parts = {found[1]: line for line in lines if (found := re.search(r'code">(\w+)</span>', line))}
    for name, part in parts.items():
        slope = bool(whence.methods[name].facts.get("slope"))
        assert ("how much, not for or against" in part) == slope, name
        assert re.search(r'class="w (for|against|size)[^"]*" style="--a:(1|0\.\d)', part), name  # none without a colour
        if slope:
            assert not re.search(r'class="w (for|against)', part), name
    assert len(parts) > 25


@pytest.mark.slow
@pytest.mark.xdist_group("demo")
def test_the_demos_agreement_says_where_it_compares_magnitudes(demo):
    for name in ("sentiment", "fashion-vit"):  # transformer attribution has no sign, integrated gradients has
        assert "Of magnitudes, where one has no sign." in of_case(demo, name)


def test_what_whence_warned_of_stands_above_the_demos_picture(tmp_path, monkeypatch, recwarn):
    def explained(model, given, *, method, target, progress):
        a = whence.explain(model, given, method="gradient")
        whence.errors.warn("gradient: something is <b>odd</b>.")
        return replace(a, receipt={**a.receipt, "warnings": ["gradient: something is <b>odd</b>."]})

    monkeypatch.setattr("whence.demo.explain", explained)
    monkeypatch.setattr("whence.demo.CASES", [case for case in CASES if case.model == "questions"])
    monkeypatch.setattr("whence.demo.methods", {"gradient": whence.methods["gradient"]})
    monkeypatch.setattr("whence.demo._properties", str)
    monkeypatch.setattr("whence.demo._scoreboard", str)
    assert main(["demo", "--out", str(tmp_path / "demo.html")]) == 0
    page = (tmp_path / "demo.html").read_text()
    box = page.index("Something is &lt;b&gt;odd&lt;/b&gt;.</p></div>")
    assert box < page.index("<h3>Gradient</h3>") < page.index("Grey: the method has no sign.")
    assert not [one for one in recwarn if issubclass(one.category, whence.WhenceWarning)]


@pytest.mark.parametrize(
    ("package", "known"), [("transformers", "transformers"), ("PIL", "Pillow"), ("rdkit", "RDKit")]
)
def test_the_demo_says_at_once_which_extra_it_needs(tmp_path, monkeypatch, capsys, package, known):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else found(name))
    code, _, err = run(capsys, "demo", "--out", str(tmp_path / "demo.html"))
    assert code == 2
    assert f"whence demo needs {known}, which is not installed.\n  pip install 'whence[demo]'" in err
    assert not (tmp_path / "demo.html").exists()


def test_without_the_photographs_network_the_demo_shows_another_image_and_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("whence.zoo.photos.CODE", "no_such_package_anywhere")
    monkeypatch.setattr("whence.demo.CASES", CASES[:1])
    monkeypatch.setattr("whence.demo.methods", {name: whence.methods[name] for name in ("gradient", "grad_cam")})
    monkeypatch.setattr("whence.demo._properties", str)
    monkeypatch.setattr("whence.demo._scoreboard", str)
    code, _, err = run(capsys, "demo", "--out", str(tmp_path / "demo.html"))
    assert code == 0
    assert "There is no photograph" in err
    assert "pip install 'whence[photos]'" in err
    page = (tmp_path / "demo.html").read_text()
    assert "There is no photograph" in page
    assert 'id="photos"' not in page
    assert 'id="fashion-cnn"' in page
    assert "Why “ankle boot”?" in page


@pytest.mark.slow
@pytest.mark.xdist_group("demo")
def test_the_demo_in_a_browser_asks_for_nothing(demo, tmp_path):
    dom, console, outside = chromium(demo, tmp_path, "--dump-dom")
    assert "<title>Where did that prediction come from?</title>" in dom
    assert "Made by Whence." in dom  # the whole page was read
    assert console == ""
    assert outside == []


@pytest.mark.slow
@pytest.mark.xdist_group("demo")
@pytest.mark.parametrize("width", [400, 1200])
def test_the_demo_fits_a_phone_and_a_screen(demo, width, tmp_path):
    assert scroll_width(demo.read_text(), width, tmp_path) <= width


def test_the_demo_says_where_its_page_is(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("whence.demo.CASES", ())
    code, out, _ = run(capsys, "demo", "--out", str(tmp_path / "demo.html"))
    assert code == 0
    assert str(tmp_path / "demo.html") in out
