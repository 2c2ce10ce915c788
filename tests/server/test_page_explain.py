"""The page explains: texts, images, molecules and written text, in a real browser and with a real server."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import pytest

import whence
from tests.support.served_page import TEXT, expected, opened
from whence.zoo import FOLDER

pytestmark = pytest.mark.slow


def shares(page: Any, method: str) -> list[str]:
    """What a card says to a screen reader: each word with its share."""
    return page.locator(f'.card[data-method="{method}"] .w').evaluate_all("all => all.map(w => w.ariaLabel)")


def test_the_page_opens_with_an_explained_example(page: Any) -> None:
    page.goto("/")
    expected(page.get_by_role("heading", level=1)).to_have_text(re.compile("^Why “(positive|negative)”\\?$"))
    expected(page.locator("#say .card .end summary")).to_have_count(4)
    assert page.locator("#say .w.for, #say .w.against").count() > 4
    assert page.locator("textarea").first.input_value()
    assert "model=zoo%3Asentiment" in page.url


def test_numbers_are_those_of_explain(page: Any) -> None:
    opened(page, f"text={TEXT}&target=0")
    a = whence.explain(whence.load("zoo:sentiment"), TEXT, method="attnlrp", target=0).merge_words()
    values = [v for v, special in zip(a.values[0].tolist(), a.special[0], strict=True) if not special]
    total = sum(abs(v) for v in values)
    told = [float(line.rsplit(" ", 1)[1].replace("−", "-").removesuffix("\u202f%")) for line in shares(page, "attnlrp")]
    assert len(told) == len(values)
    for share, value in zip(told, values, strict=True):
        assert share == pytest.approx(100 * value / total, abs=0.51 if abs(share) >= 9.5 else 0.051)


def test_a_text_is_typed_and_explained(page: Any) -> None:
    opened(page)
    page.locator("#in-text").fill("A dull, lifeless mess.")
    page.locator("#in-text").press("Control+Enter")
    expected(page.get_by_role("heading", level=1)).to_have_text("Why “negative”?")
    expected(page.locator("#say .card .end summary")).to_have_count(4)
    assert "dull" in page.locator('.card[data-method="attnlrp"] .reading').inner_text()
    page.go_back()
    expected(page.locator("#in-text")).not_to_have_value("A dull, lifeless mess.")
    page.get_by_label("Examples").select_option(index=2)
    expected(page.locator("#say .card .end summary")).to_have_count(4)


def test_a_class_is_chosen_by_clicking_it_or_with_the_keys(page: Any) -> None:
    opened(page, f"text={TEXT}")
    first = page.get_by_role("radio", checked=True).inner_text().split()[0]
    page.get_by_role("radio", checked=False).click()
    heading = page.get_by_role("heading", level=1)
    expected(heading).not_to_have_text(f"Why “{first}”?")
    expected(page.locator("#say .card .end summary")).to_have_count(4)
    page.get_by_role("radio", checked=True).press("ArrowUp")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    expected(heading).to_have_text(f"Why “{first}”?")
    assert page.evaluate("document.activeElement.ariaChecked") == "true"


def test_methods_are_chosen_by_family_and_the_fifth_takes_the_place_of_the_first(page: Any) -> None:
    opened(page, f"text={TEXT}")
    family = page.get_by_role("group", name=re.compile("^Slopes: What would a small change do"))
    assert family.get_by_role("button").count() == 4
    family.get_by_role("button", name="more").click()
    assert family.get_by_role("button").count() > 4
    names = page.locator("#say .card").evaluate_all("all => all.map(card => card.dataset.method)")
    family.get_by_role("button", name="Input × gradient").click()
    expected(page.locator('.card[data-method="input_x_gradient"] .end summary')).to_be_visible()
    now = page.locator("#say .card").evaluate_all("all => all.map(card => card.dataset.method)")
    assert now == [*names[1:], "input_x_gradient"]
    assert page.locator(".chip[aria-pressed=true]").count() == 4
    expected(family.get_by_role("button", name="Input × gradient", exact=True)).to_have_count(1)  # without its letter


def test_the_pointer_on_a_word_shows_its_numbers_by_all_methods(page: Any) -> None:
    opened(page, f"text={TEXT}")
    page.locator("#say .card").nth(1).locator(".w", has_text="clumsy").hover()
    tip = page.get_by_role("tooltip")
    expected(tip).to_contain_text("“clumsy”")
    assert tip.locator("tr").count() == 4
    assert re.fullmatch(r"[+−][\d.]+\s%", tip.locator("tr").first.locator("td").nth(1).inner_text())
    assert page.locator("#say .w.at").all_inner_texts() == ["clumsy"] * 4
    page.mouse.move(5, 5)
    assert page.locator("#say .w.at").count() == 0
    page.locator("#say .card .w").first.focus()
    page.keyboard.press("ArrowRight")
    expected(tip).to_contain_text("“a”")


def test_methods_share_one_scale(page: Any) -> None:
    opened(page, f"text={TEXT}")
    found = page.locator("#say .card .w").evaluate_all(
        "all => all.map(w => [Number(w.style.getPropertyValue('--a')), w.ariaLabel])"
    )
    ends = page.locator(".scale.two + span + .ticks span").all_inner_texts()
    limit = float(re.sub(r"[^\d.]", "", ends[-1]))
    for strength, label in found:
        share = abs(float(label.rsplit(" ", 1)[1].replace("−", "-").removesuffix("\u202f%")))
        assert strength == pytest.approx(min(1.0, share / limit) ** 0.85, abs=0.03)


def test_rows_columns_and_bars(page: Any) -> None:
    opened(page, f"text={TEXT}")
    page.get_by_role("button", name="Columns").click()
    assert page.locator("#say .cards.columns .card").count() == 4
    page.get_by_role("button", name="Bars").click()
    rows = page.locator("#say table.bars tbody tr")
    assert rows.count() == 15
    assert "clumsy" in rows.nth(2).inner_text()
    assert "look=bars" in page.url


def test_letters_are_counted_as_people_count_them(page: Any) -> None:
    opened(page, "text=😀😀 A warm, funny film 👍🏽 indeed.")
    words = page.locator('.card[data-method="attnlrp"] .w').all_inner_texts()
    assert {"warm", "funny", "film", "indeed"} <= set(words)
    assert page.locator('.card[data-method="attnlrp"] .reading').inner_text() == "😀😀 A warm, funny film 👍🏽 indeed."


def test_an_image_is_chosen_dropped_and_drawn_in_four_ways(page: Any) -> None:
    page.goto("/#model=zoo:fashion-vit&example=6")
    expected(page.get_by_role("heading", level=1)).to_have_text("Why “shirt”?")
    expected(page.locator("#say .multi canvas:not(.pending)")).to_have_count(5)
    seen = set()
    for way in ("Overlay", "Masked", "Contour", "Map"):
        page.get_by_role("button", name=way, exact=True).click()
        seen.add(page.locator("#say .multi canvas").nth(1).evaluate("c => c.toDataURL()"))
    assert len(seen) == 4
    frame = page.locator("#say .frame-of").nth(1)
    size = frame.bounding_box()["width"]
    frame.hover(position={"x": size * 14.5 / 28, "y": size * 14.5 / 28})
    tip = page.get_by_role("tooltip")
    expected(tip).to_contain_text("pixel 14, 14 · grey")
    assert tip.locator("tr").count() == 4
    assert page.locator(".xy.on").count() == 5
    bag = FOLDER / "fashion-vit" / "bag.png"
    dropped(page, bag)
    expected(page.get_by_role("heading", level=1)).to_have_text("Why “bag”?")
    expected(page.locator(".drop")).to_contain_text("bag.png")
    page.locator("#file").set_input_files(FOLDER / "fashion-vit" / "trouser.png")
    expected(page.get_by_role("heading", level=1)).to_have_text("Why “trouser”?")


def dropped(page: Any, file: Path) -> None:
    """A file that is dragged from the desktop onto the field."""
    content = base64.b64encode(file.read_bytes()).decode()
    data = page.evaluate_handle(
        """([content, name]) => {
            const given = new DataTransfer(), bytes = Uint8Array.from(atob(content), letter => letter.charCodeAt(0));
            given.items.add(new File([bytes], name, {type: "image/png"}));
            return given;
        }""",
        [content, file.name],
    )
    page.locator(".drop").dispatch_event("drop", {"dataTransfer": data})


def test_a_molecule_is_drawn_with_its_atoms_and_bonds(page: Any) -> None:
    pytest.importorskip("rdkit")
    page.goto("/#model=zoo:molecules&smiles=c1ccccc1O")
    expected(page.locator("#say .card .end summary")).to_have_count(4)
    card = page.locator("#say .card").first
    assert card.locator(".atom").count() == 7
    assert card.locator("text").all_text_contents() == ["OH"]
    card.locator(".atom").nth(6).hover()
    expected(page.get_by_role("tooltip")).to_contain_text("O (atom 7)")
    page.locator("#in-smiles").fill("CCN")
    page.locator("#in-smiles").press("Enter")
    expected(page.locator("#say .card").first.locator("text")).to_have_text(["NH₂"])


def test_a_token_that_was_written_is_clicked(page: Any) -> None:
    opened(page, "model=zoo:language&prompt=the film is a&methods=attnlrp,integrated_gradients", 2)
    tokens = page.locator(".tk")
    assert tokens.count() > 3
    second = tokens.nth(1).inner_text()
    tokens.nth(1).click()
    heading = page.get_by_role("heading", level=1)
    expected(heading).to_have_text(f"Why “{second}”?")
    page.get_by_role("button", name="Everything before").click()
    assert page.locator('.card[data-method="attnlrp"] .reading').count() == 2
    tokens.nth(1).press("ArrowRight")
    expected(heading).to_have_text(f"Why “{tokens.nth(2).inner_text()}”?")
    page.get_by_role("button", name="Whole answer").click()
    expected(heading).to_have_text("What does the answer rest on?")


def test_a_token_is_contrasted_with_another_that_could_stand_there(page: Any) -> None:
    opened(page, "model=zoo:language&prompt=the film is a&methods=attnlrp", 1)
    before = shares(page, "attnlrp")
    other = page.locator("#else .pred[aria-checked=false]").first
    name = other.locator(".name").inner_text()
    other.click()
    expected(page.get_by_role("heading", level=1)).to_have_text(re.compile(f"rather than “{re.escape(name)}”"))
    expected(page.locator("#say .card .end summary")).to_have_count(1)
    assert shares(page, "attnlrp") != before
    assert "rather=" in page.url


def test_a_translation_shows_what_each_word_comes_from(page: Any) -> None:
    page.goto("/#model=zoo:translation&text=Das ist eine gute Idee.&methods=integrated_gradients")
    expected(page.locator("#say .card .end summary")).to_have_count(1)
    assert page.locator('.card[data-method="integrated_gradients"] .reading').inner_text() == "Das ist eine gute Idee."
    page.locator(".tk").nth(2).click()
    expected(page.get_by_role("heading", level=1)).to_contain_text(page.locator(".tk").nth(2).inner_text())


def test_hostile_text_is_text(page: Any) -> None:
    evil = "<img src=x onerror=alert(1)><script>alert(2)</script>\u202e\u0007 fine film"
    opened(page)
    page.locator("#in-text").fill(evil)
    page.get_by_role("button", name="Explain", exact=True).click()
    expected(page.locator("#say .card .reading").first).to_contain_text("<script>")
    expected(page.locator("#say .card .end summary")).to_have_count(4)
    assert page.locator("main img, main script").count() == 0
    assert page.evaluate("document.querySelectorAll('script').length") == 1


def test_what_cannot_be_explained_is_said(page: Any) -> None:
    opened(page)
    page.goto("/#model=zoo:sentiment&text=" + "good " * 600)
    expected(page.get_by_role("alert")).to_contain_text("tokens")
    page.wrong.clear()  # the server refused it, which the browser notes in its console
    page.goto("/#model=zoo:nothing")
    expected(page.get_by_role("alert")).to_contain_text("There is no model “zoo:nothing” here.")
