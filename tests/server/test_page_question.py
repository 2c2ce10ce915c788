"""The page questions an explanation: units taken out, the top k, other words, attention; and how far to trust it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import whence
from tests.support.served_page import TEXT, expected, opened

pytestmark = pytest.mark.slow


def questioned(page: Any, fragment: str = "") -> Any:
    """The page when the curves are drawn, too."""
    opened(page, f"text={TEXT}&{fragment}")
    expected(page.locator("#ask .chart")).to_be_visible()
    return page


def word(page: Any, text: str) -> Any:
    return page.locator("#ask").get_by_role("switch", name=text, exact=True)


def probability(text: str, label: int) -> float:
    """What the model says of a text."""
    wrapped = whence.load("zoo:sentiment")
    with torch.no_grad():
        given = wrapped.tokenizer(text, return_tensors="pt")
        return float(wrapped.model(**given).logits.softmax(-1)[0, label])


def test_the_page_takes_out_what_the_methods_put_first(page: Any) -> None:
    questioned(page, "target=0")
    expected(page.locator("#ask .gone")).to_have_text(["clumsy"])
    expected(page.locator("#ask .ba")).to_contain_text("Without “clumsy” the model says positive instead")


def test_a_word_that_is_clicked_is_taken_out_and_the_model_asked_at_once(page: Any) -> None:
    questioned(page, "target=0&out=")
    expected(page.locator("#ask .ba")).to_contain_text("Nothing is taken out yet.")
    word(page, "clumsy").click()
    after = probability(TEXT.replace("clumsy ", ""), 0)
    expected(page.locator("#ask .ba output")).to_have_text(f"{100 * after:.1f}\u202f%")
    table = page.locator("#ask .said")
    expected(table).to_contain_text("measured")
    assert table.locator("tbody tr").count() == 5
    measured = table.locator("tr", has_text="measured").locator("td").nth(2).inner_text()
    said = table.locator("tr", has_text="AttnLRP").locator("td").nth(2).inner_text()
    assert measured.startswith("−")
    assert said.startswith("−")
    expected(table.locator("tr", has_text="Transformer attribution")).to_contain_text("has no unit")
    word(page, "moving").press("Space")
    expected(page.locator("#ask .ba")).to_contain_text("Without 2 words")
    assert re.search(r"out=\d+%2C\d+", page.url)
    page.get_by_role("button", name="Put all back").click()
    expected(page.locator("#ask .ba")).to_contain_text("Nothing is taken out yet.")
    assert page.locator("#ask .gone").count() == 0


def test_the_top_k_by_each_method_with_curves_and_the_random_band(page: Any) -> None:
    questioned(page, "target=0")
    chart = page.locator("#ask .chart")
    assert chart.locator(".ln").count() == 5
    assert chart.locator(".band").count() == 1
    slider = page.get_by_role("slider")
    slider.fill("1")
    rows = page.locator(".ktable tr")
    expected(rows).to_have_count(5)
    expected(rows.nth(1)).to_contain_text("clumsy")
    first = rows.nth(1).locator(".num").inner_text()
    assert first == f"{100 * probability(TEXT.replace('clumsy ', ''), 0):.1f}\u202f%"
    slider.press("ArrowRight")
    expected(page.locator(".kk output")).to_have_text("2")
    assert "," in rows.nth(1).locator("td").nth(1).inner_text()
    assert "k=2" in page.url


def test_the_text_is_changed_before_and_after(page: Any) -> None:
    questioned(page, "target=0")
    page.locator("#edit").fill(TEXT.replace("moving", "tedious"))
    row = page.locator(".edits tr").first
    expected(row).to_contain_text("tedious")
    assert row.locator("del").inner_text() == "moving"
    assert row.locator("ins").inner_text() == "tedious"
    after = probability(TEXT.replace("moving", "tedious"), 0)
    assert f"{100 * after:.1f}" in row.inner_text()
    row.get_by_role("button", name="Explain").click()
    expected(page.locator("#in-text")).to_have_value(TEXT.replace("moving", "tedious"))


def test_patches_of_an_image_are_brushed(page: Any) -> None:
    page.goto("/#model=zoo:fashion-cnn&example=6&out=")
    expected(page.locator("#ask .patches")).to_be_visible()
    expected(page.locator("#ask .chart")).to_be_visible()
    before = page.locator("#ask .ba .num").first.inner_text()
    page.locator("#ask .brush").scroll_into_view_if_needed()
    boxes = [page.locator(".patch").nth(i).bounding_box() for i in (16, 17, 18)]
    centres = [(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) for box in boxes]
    page.mouse.move(*centres[0])
    page.mouse.down()
    for x, y in centres[1:]:
        page.mouse.move(x, y, steps=4)
    page.mouse.up()
    assert page.locator(".patch.gone").count() == 3
    expected(page.locator("#ask .ba")).to_contain_text("Without 3 patches")
    expected(page.locator("#ask .ba output")).not_to_have_text(before)
    page.locator(".patch").nth(18).press("ArrowDown")
    page.keyboard.press("Space")
    expected(page.locator(".patch.gone")).to_have_count(4)
    page.get_by_role("slider").fill("10")
    assert page.locator(".tiles canvas").count() == 4


def test_a_word_of_a_prompt_is_taken_out(page: Any) -> None:
    opened(page, "model=zoo:language&prompt=despite its flaws, the movie&methods=attnlrp,leave_one_out&out=", 2)
    expected(page.locator("#ask .ba")).to_contain_text("Nothing is taken out yet.")
    word(page, "movie").click()
    expected(page.locator("#ask .ba")).to_contain_text("Without “movie” the model gives")
    table = page.locator("#ask .said")
    expected(table).to_contain_text("measured")


def test_the_attention_of_a_word_is_shown_for_a_layer_and_a_head(page: Any) -> None:
    questioned(page)
    page.get_by_text("Attention of a word, layer by layer").click()
    tokens = page.locator(".tokens .w")
    expected(tokens.nth(3)).to_be_visible()
    tokens.nth(3).hover()
    told = page.locator(".bar2 p")
    expected(told).to_contain_text("clumsy looks at")
    weights = [float(a) for a in tokens.evaluate_all("all => all.map(w => w.style.getPropertyValue('--a'))")]
    page.get_by_label("layer").select_option("1")
    page.get_by_label("head").select_option("2")
    expected(page).to_have_url(re.compile("layer=0.*head=1|head=1.*layer=0"))
    expected(told).to_contain_text("clumsy looks at")
    page.wait_for_function(
        "before => [...document.querySelectorAll('.tokens .w')]"
        ".some((w, i) => Number(w.style.getPropertyValue('--a')) !== before[i])",
        arg=weights,
    )
    a = whence.explain(whence.load("zoo:sentiment"), TEXT, method="random", keep=["attention"])
    row = a.kept["attention"][0][0, 1, 3]
    best = int(row.argmax())
    assert f"{100 * float(row[best]):.0f}" in told.inner_text()


# ---- trust ----


def test_gap_cost_and_receipt_are_said_in_words(page: Any) -> None:
    opened(page, f"text={TEXT}")
    card = page.locator('.card[data-method="integrated_gradients"]')
    expected(card.locator("summary")).to_contain_text(re.compile("adds up within [\\d.]+ %"))
    expected(card.locator("summary")).to_contain_text("passes")
    card.locator("summary").click()
    expected(card.locator(".facts")).to_contain_text("Yes: the parts miss the score's change by")
    expected(page.locator('.card[data-method="attnlrp"] summary')).to_contain_text("no sum is promised")


def test_warnings_stand_above_the_picture_and_disagreement_is_said(page: Any) -> None:
    opened(page, f"text={TEXT}")
    warn, card = page.locator("#say .warn").first, page.locator("#say .card").first
    assert warn.bounding_box()["y"] < card.bounding_box()["y"]
    expected(page.locator("#say .warns")).to_contain_text("special tokens")
    table = page.locator("#agree table")
    assert table.locator("td.c").count() == 6
    assert table.locator("tr", has_text="random").count() == 1
    expected(page.locator("#agree .note")).to_contain_text("have least in common")


def test_a_link_shows_the_same(page: Any) -> None:
    page.goto(f"/#text={TEXT}&target=1&methods=attnlrp,gradient&look=bars&out=3&k=4")
    expected(page.locator("#ask .chart")).to_be_visible()
    expected(page.get_by_role("heading", level=1)).to_have_text("Why “positive”?")
    assert page.locator("table.bars thead th[colspan]").all_inner_texts() == ["A AttnLRP", "B Gradient"]
    expected(page.locator("#ask .gone")).to_have_text(["clumsy"])
    expected(page.locator(".kk output")).to_have_text("4")
    page.locator("#k").press("ArrowRight")
    page.get_by_role("button", name="Rows").click()
    link = page.url
    page.goto("about:blank")
    page.goto(link)
    expected(page.locator(".kk output")).to_have_text("5")
    expected(page.locator("#ask .gone")).to_have_text(["clumsy"])
    assert page.locator("#say .cards.rows .card").count() == 2


@pytest.mark.parametrize("name", ["html", "png", "json", "python", "shell"])
def test_what_is_on_the_screen_is_exported(page: Any, name: str, tmp_path: Path) -> None:
    opened(page, f"text={TEXT}&target=0&methods=attnlrp,gradient", 2)
    page.locator("#export summary").click()
    with page.expect_download() as told:
        page.locator(f'#export [data-format="{name}"]').click()
    file = tmp_path / told.value.suggested_filename
    told.value.save_as(file)
    content = file.read_bytes()
    if name == "png":
        assert content.startswith(b"\x89PNG")
    elif name == "json":
        assert "attnlrp" in json.dumps(json.loads(content))
    elif name == "html":
        assert b"clumsy" in content
        assert b"<script" not in content
    elif name == "python":
        done = subprocess.run([sys.executable, file], capture_output=True, text=True, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stderr
    else:
        assert content.decode().splitlines()[-1].strip()
        assert "zoo:sentiment" in content.decode()


def test_work_is_cancelled_and_asked_again(page: Any) -> None:
    text = "The plot makes no sense and the jokes fall flat, " * 4
    page.goto(f"/#text={text}&methods=gradient,shapley")
    expected(page.locator('.card[data-method="gradient"] .end summary')).to_be_visible()
    page.locator(".slot-wait").get_by_role("button", name="Cancel").click()
    expected(page.locator("#say .failed")).to_contain_text("Shapley values: Cancelled before it answered.")
    assert page.locator('.card[data-method="gradient"] .tops b').count()
    expected(page.get_by_role("button", name="Ask again")).to_be_visible()
