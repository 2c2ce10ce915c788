"""The page on phones and wide screens, light and dark, with the keyboard; and models whose labels are hostile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.served_page import TEXT, expected, opened, watched
from tests.support.server import served

pytestmark = pytest.mark.slow
VIEWS = {
    "text": f"text={TEXT}",
    "bars": f"text={TEXT}&look=bars",
    "image": "model=zoo:fashion-cnn&example=6",
    "language": "model=zoo:language&prompt=the film is a&methods=attnlrp,leave_one_out",
}
_BACKGROUND = {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 20, 25)"}
_UNNAMED = """() => [...document.querySelectorAll(
        "button, a[href], input, select, textarea, [role=switch], [tabindex='0']")]
    .filter(e => e.checkVisibility() && !(e.innerText?.trim() || e.ariaLabel || e.labels?.length || e.title
        || e.getAttribute("aria-labelledby") || e.getAttribute("role") === "main" || e.tagName === "MAIN"))
    .map(e => e.outerHTML.slice(0, 120))"""


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1400, "light"), (800, "light")])
def test_nothing_is_wider_than_the_screen_and_everything_has_a_name(
    browser: Any, zoo: str, view: str, width: int, scheme: str
) -> None:
    with watched(browser, zoo, color_scheme=scheme) as page:
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(f"/#{VIEWS[view]}")
        expected(page.locator("#say .warn, #say .legend").first).to_be_visible()
        page.wait_for_function("() => !document.querySelector('.progress:not([hidden])')")
        expected(page.locator("#ask")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(_UNNAMED) == []
        colour = "getComputedStyle(document.documentElement).backgroundColor"
        assert page.evaluate(colour) == _BACKGROUND[scheme]
        page.locator("#theme").click()
        assert page.evaluate(colour) == _BACKGROUND["light" if scheme == "dark" else "dark"]


def test_the_keyboard_reaches_everything(page: Any) -> None:
    opened(page, f"text={TEXT}&target=0&out=")
    expected(page.locator("#ask .chart")).to_be_visible()
    seen: list[str] = []
    page.locator(".skip").focus()
    for _ in range(120):
        page.keyboard.press("Tab")
        told = page.evaluate("document.activeElement.dataset.focus ?? document.activeElement.id ?? ''")
        seen.append(str(told))
        if page.evaluate("document.activeElement === document.body"):
            break
    found = " | ".join(seen)
    for name in ("tab Text", "Model", "in text", "pred 0", "method attnlrp", "How to draw rows", "unit 1", "k", "edit"):
        assert name in seen, found
    assert sum(one.startswith("unit") for one in seen) == 1  # the words are one stop, the arrow keys move in them
    page.locator('[data-focus="unit 1"]').focus()
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    expected(page.locator("#ask .gone")).to_have_text(["clumsy"])
    expected(page.locator("#ask .ba")).to_contain_text("the decision flips")


def test_the_pictures_of_a_map_follow_the_theme(page: Any) -> None:
    page.goto("/#model=zoo:fashion-cnn&example=6&look=map")
    expected(page.locator("#say .multi canvas:not(.pending)")).to_have_count(5)
    drawn = "document.querySelectorAll('#say .multi canvas')[1].toDataURL()"
    light = page.evaluate(drawn)
    page.locator("#theme").click()
    assert page.evaluate(drawn) != light


# ---- a model of one's own ----

EVIL = ("<b>evil</b>", '"><script>alert(1)</script>')


@pytest.fixture(scope="module")
def own(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of one small classifier in a folder, whose labels are markup."""
    from tests.support.folders import built, stored, wordpiece

    folder = tmp_path_factory.mktemp("models") / "small"
    tokenizer = wordpiece(folder)
    labels = dict(enumerate(EVIL))
    model = built("BertForSequenceClassification", "BertConfig", len(tokenizer), num_labels=2, id2label=labels)
    with served(folder.parent, "--model", stored(folder, model, tokenizer)) as server:
        yield server.address


def test_labels_are_text_and_a_pair_of_texts_is_explained(browser: Any, own: str) -> None:
    with watched(browser, own) as page:
        page.goto("/#text=a clever film&pair=it is not dull")
        expected(page.locator("#say .card .end summary")).to_have_count(4)
        assert page.locator(".pred .name").all_inner_texts() == sorted(
            EVIL, key=page.locator(".pred .name").all_inner_texts().index
        )
        assert page.get_by_role("heading", level=1).inner_text() in {f"Why “{label}”?" for label in EVIL}
        assert page.locator("#say .card").first.locator(".reading").all_inner_texts() == [
            "a clever film", "it is not dull",
        ]  # fmt: skip
        page.locator("#in-pair").fill("i think that is bad")
        page.locator("#in-pair").press("Control+Enter")
        expected(page.locator("#say .card").first.locator(".reading").nth(1)).to_have_text("i think that is bad")
        expected(page.locator("#ask .chart")).to_be_visible()
        assert page.locator("main b").filter(has_text="evil").count() == 0
        assert page.evaluate("document.querySelectorAll('script').length") == 1


def test_a_model_without_examples_waits_for_a_text(browser: Any, own: str) -> None:
    with watched(browser, own) as page:
        page.goto("/")
        expected(page.locator("#in-text")).to_be_visible()
        page.locator("#in-text").fill(" \n ")  # which is nothing
        expected(page.get_by_role("button", name="Explain", exact=True)).to_be_disabled()
        page.locator("#in-text").fill("a clever film")
        page.get_by_role("button", name="Explain", exact=True).click()
        expected(page.locator("#say .card .end summary")).to_have_count(4)


def test_a_file_that_is_not_an_image_is_refused_in_words(page: Any, tmp_path: Path) -> None:
    page.goto("/#model=zoo:fashion-cnn&example=6")
    expected(page.locator("#say .multi canvas:not(.pending)")).to_have_count(5)
    wrong = tmp_path / "notes.png"
    wrong.write_text("this is no image")
    page.locator("#file").set_input_files(wrong)
    expected(page.get_by_role("alert")).to_contain_text("The image cannot be read.")
    page.wrong.clear()  # the server refused it, which the browser notes in its console
    page.locator(".thumbs button").nth(2).click()
    expected(page.locator("#say .multi canvas:not(.pending)")).to_have_count(5)
