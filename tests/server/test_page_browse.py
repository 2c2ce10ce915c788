"""The page browses a run: a table that scrolls through any number of rows, filters, summaries, and rows that open."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import whence
from tests.support.long_runs import repeated, sentences
from tests.support.served_page import expected, watched
from tests.support.server import served

pytestmark = pytest.mark.slow
METHODS = ["integrated_gradients", "attnlrp"]


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 576 rows."""
    folder = tmp_path_factory.mktemp("runs")
    data = sentences(folder / "reviews.jsonl")
    whence.run("zoo:sentiment", str(data), methods=METHODS, out=str(folder / "run"), shard_rows=576, progress=False)
    return folder / "run"


@pytest.fixture(scope="module")
def address(browser: Any, short: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("browsing"), "--model", "zoo:sentiment", "--run", str(short)) as server:
        yield server.address


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    with watched(browser, address) as opened:
        yield opened


def browsed(page: Any, fragment: str = "view=run") -> Any:
    page.goto(f"/#{fragment}")
    expected(page.locator(".tr[data-row]").first).to_be_visible()
    expected(page.locator("#movers")).to_be_visible()
    return page


def column(page: Any, name: str) -> list[str]:
    """What stands in a column, from top to bottom."""
    cells = page.locator(f".tr > .{name}").evaluate_all(
        "all => all.map(c => [Number(c.parentElement.dataset.place), c.innerText]).sort((a, b) => a[0] - b[0])"
    )
    return [text for _, text in cells]


def test_a_run_opens_with_its_rows_and_what_holds_over_all(page: Any) -> None:
    page.goto("/")
    expected(page.get_by_role("heading", level=1)).to_have_text("576 rows, explained")
    expected(page.locator("#movers")).to_contain_text("Speak for")
    expected(page.locator("#movers")).to_contain_text("lifeless")
    expected(page.locator("#rows .head")).to_contain_text("576 of 576")
    assert page.get_by_role("grid").get_attribute("aria-rowcount") == "577"
    assert page.locator(".tr").count() < 60
    expected(page.locator("#outstanding")).to_contain_text("Methods disagree most")


def test_rows_are_sorted_up_and_down(page: Any) -> None:
    browsed(page)
    head = page.get_by_role("columnheader", name="probability")
    head.get_by_role("button").click()
    expected(head).to_have_attribute("aria-sort", "ascending")
    expected(page.locator(".tr[data-row]").first).to_be_visible()
    found = [float(re.sub(r"[^\d.]", "", text)) for text in column(page, "pro")]
    assert found == sorted(found)
    head.get_by_role("button").click()
    expected(head).to_have_attribute("aria-sort", "descending")
    expected(page.locator('.tr[data-place="0"] .pro')).to_contain_text("97")
    found = [float(re.sub(r"[^\d.]", "", text)) for text in column(page, "pro")]
    assert found == sorted(found, reverse=True)


def test_rows_are_filtered(page: Any) -> None:
    browsed(page)
    page.get_by_label("contains a word").fill("Lifeless")
    expected(page.locator("#rows .head")).to_contain_text("92 of 576")
    assert all("lifeless" in text for text in column(page, "what"))
    page.get_by_label("predicted").select_option("positive")
    expected(page.locator("#rows .head")).not_to_contain_text("92 of 576")
    assert set(column(page, "pre")) == {"positive"}
    page.get_by_role("button", name="Clear").click()
    expected(page.locator("#rows .head")).to_contain_text("576 of 576")
    page.get_by_label("prediction is not the label").check()
    expected(page.locator("#rows .head")).not_to_contain_text("576 of 576")
    expected(page.locator(".tr .differs").first).to_be_visible()
    assert page.locator(".tr .differs").count() == page.locator(".tr[data-row]").count()
    page.get_by_label("methods disagree").check()
    page.get_by_label("contains a word").fill("no such word")
    expected(page.get_by_text("No row fits these filters.")).to_be_visible()
    assert "wrong=true" in page.url


def test_a_click_opens_the_row_and_a_link_opens_it_again(page: Any) -> None:
    browsed(page)
    page.locator('.tr[data-place="7"]').click()
    drawer = page.get_by_role("complementary", name="The open row")
    expected(drawer.get_by_role("heading", name="Row 7")).to_be_visible()
    assert drawer.locator(".card").count() == len(METHODS)
    assert "clumsy" in drawer.locator(".reading").first.inner_text()
    page.get_by_role("grid").locator(".scroller").press("ArrowDown")
    expected(drawer.get_by_role("heading", name="Row 8")).to_be_visible()
    link = page.url
    assert "row=8" in link
    page.goto("about:blank")
    page.goto(link)
    expected(drawer.get_by_role("heading", name="Row 8")).to_be_visible()
    drawer.get_by_role("button", name="Question it").click()
    expected(page.get_by_role("heading", level=1)).to_have_text(re.compile("^Why “"))
    assert page.locator("#in-text").input_value() == "A warm film with a lifeless ending."


def test_text_of_rows_is_text(page: Any) -> None:
    browsed(page, "view=run&word=boring")
    assert "<b>boring</b>" in column(page, "what")[0]
    assert page.locator(".tr b").count() == 0


def test_a_word_of_the_summary_filters_the_rows(page: Any) -> None:
    browsed(page)
    page.locator(".mover").first.click()
    word = page.get_by_label("contains a word").input_value()
    assert word
    expected(page.locator("#rows .head")).not_to_contain_text("576 of 576")


def test_a_hundred_thousand_rows(browser: Any, short: Path, tmp_path: Path) -> None:
    long = repeated(short, tmp_path / "long", 100_000)
    with (
        served(tmp_path, "--model", "zoo:sentiment", "--run", str(long)) as server,
        watched(browser, server.address) as page,
    ):
        page.goto("/#view=run")
        expected(page.locator("#rows .head")).to_contain_text("100,224 of 100,224")
        scroller = page.locator(".scroller")
        for part in (0.3, 0.9, 0.1, 1.0):
            scroller.evaluate("(s, part) => { s.scrollTop = part * s.scrollHeight }", part)
            page.wait_for_function("() => document.querySelectorAll('.tr[data-empty]').length === 0")
            assert page.locator(".tr").count() < 60
        expected(page.locator('.tr[data-row="100223"]')).to_be_visible()
        scroller.press("Home")
        expected(page.locator('.tr[data-row="0"]')).to_be_visible()
        scroller.press("End")
        expected(page.get_by_role("heading", name="Row 100,223")).to_be_visible()
