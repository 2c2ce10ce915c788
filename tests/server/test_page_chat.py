"""Conversations, answers and molecules on the page: roles with their sums, curves of what is written, atoms that go."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.served_page import expected, opened, watched
from tests.support.server import chat_folder, served

pytestmark = pytest.mark.slow
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who is <b>it</b>?"}]


@pytest.fixture(scope="module")
def chatty(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of one small language model with a chat template."""
    folder = tmp_path_factory.mktemp("models")
    with served(folder, "--model", str(chat_folder(folder / "chatty"))) as server:
        yield server.address


def per_cent(text: str) -> float:
    return float(re.sub(r"[^\d.−+]", "", text).replace("−", "-"))


def post(address: str, body: Any) -> Any:
    asked = urllib.request.Request(f"{address}api/ask", json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(asked))


def test_a_conversation_is_written_message_by_message(browser: Any, chatty: str) -> None:
    with watched(browser, chatty) as page:
        page.goto("/")
        page.get_by_role("button", name="conversation").click()
        go = page.get_by_role("button", name="Explain", exact=True)
        expected(go).to_be_disabled()  # nothing is written yet
        page.get_by_label("Role of message 1").select_option("system")
        page.get_by_label("Message 1", exact=True).fill("Be brief.")
        page.get_by_role("button", name="Add a message").click()
        expected(page.get_by_label("Message 2", exact=True)).to_be_focused()
        expected(go).to_be_disabled()  # an empty message
        page.keyboard.type("Who is it?")
        page.get_by_role("button", name="Add a message").click()
        page.get_by_role("button", name="Remove message 3").click()
        page.get_by_label("Message 2", exact=True).press("Control+Enter")
        expected(page.locator("#say .card .end summary")).to_have_count(4)
        roles = page.locator("#say .card").first.locator(".blk .role")
        assert roles.all_inner_texts() == ["system", "user"]
        assert "messages=" in page.url


def test_messages_have_the_sums_of_their_tokens_and_a_link_shows_the_same(browser: Any, chatty: str) -> None:
    with watched(browser, chatty) as page:
        opened(page, f"model=chatty&methods=attnlrp,gradient&messages={quote(json.dumps(MESSAGES))}", 2)
        card = page.locator('.card[data-method="attnlrp"]')
        assert card.locator(".blk .reading").all_inner_texts() == [m["content"] for m in MESSAGES]
        told = post(
            chatty, {"kind": "explain", "model": "chatty", "input": {"messages": MESSAGES}, "methods": ["attnlrp"]}
        )
        one, starts = told["results"][0], (len("<|system|>\n"), len("<|system|>\nBe brief.<|end|>\n<|user|>\n"))
        drawn = [
            (unit["start"], value) for unit, value in zip(one["units"], one["values"][0], strict=True)
            if not unit["special"] and unit["part"] != "written"
        ]  # fmt: skip
        whole = sum(abs(value) for _, value in drawn)
        for block, start, message in zip(card.locator(".blk").all(), starts, MESSAGES, strict=True):
            own = sum(value for place, value in drawn if start <= place <= start + len(message["content"]))
            assert per_cent(block.locator(".sum").inner_text()) == pytest.approx(100 * own / whole, abs=0.51)
        expected(card.locator(".tops")).to_contain_text("on the chat template and the answer itself")
        expected(page.locator("#ask .chart")).to_be_visible()
        page.get_by_role("button", name="Everything before").click()
        assert card.locator(".blk .role").all_inner_texts() == ["system", "user", "answer so far"]
        page.locator("#export summary").click()
        page.locator('#export [data-format="shell"]').click()
        expected(page.locator("#export .trouble")).to_contain_text("Take the Python instead.")
        page.wait_for_timeout(100)
        page.wrong.clear()  # the browser itself tells of the refusal


def test_the_top_tokens_of_a_prompt_are_taken_out(page: Any) -> None:
    opened(page, "model=zoo:language&prompt=despite its flaws, the movie&methods=attnlrp,leave_one_out&out=&k=1", 2)
    expected(page.locator("#ask .chart")).to_be_visible()
    assert page.locator("#ask .chart .ln").count() == 3
    rows = page.locator(".ktable tr")
    expected(rows.first).to_contain_text("movie")
    page.locator("#ask").get_by_role("switch", name="movie", exact=True).click()
    after = page.locator("#ask .ba output")
    expected(after).to_have_text(rows.first.locator(".num").inner_text())  # the curve and the click say the same
    page.locator("#k").press("ArrowRight")
    expected(page.locator(".kk output")).to_have_text("2")
    assert "k=2" in page.url
    page.get_by_role("button", name="Whole answer").click()
    expected(page.locator("#ask .ba")).to_contain_text("a token of “is a movie.” on average")
    expected(page.locator("#ask .chart")).to_be_visible()
    top = page.locator("#ask .chart text").filter(has_text="%").last.text_content()
    assert 0 < per_cent(top) <= 100


def test_atoms_are_taken_out(page: Any) -> None:
    opened_at = "model=zoo:molecules&smiles=CC(%3DO)Oc1ccccc1C(%3DO)O&methods=deeplift,attnlrp&out="
    page.goto(f"/#{opened_at}")
    expected(page.locator("#ask .chart")).to_be_visible()
    atoms = page.locator("#ask").get_by_role("switch")
    expected(atoms).to_have_count(13)
    atoms.nth(1).click()
    expected(page.locator("#ask .ba")).to_contain_text("Without C (atom 2) the model gives NR-ER")
    expected(page.locator("#ask .said")).to_contain_text("measured")
    atoms.nth(1).press("ArrowRight")
    page.keyboard.press("Space")
    expected(page.locator("#ask .gone")).to_have_count(2)
    assert "out=1%2C2" in page.url
    page.locator("#edit").fill("CC(=O)Oc1ccccc1C(=O)C")
    expected(page.locator(".edits tr")).to_have_count(1)
