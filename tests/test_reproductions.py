"""The reproductions run in their quick form, and every one of them says what came out."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("transformers")

from reproductions.__main__ import main, names
from reproductions.report import BEGIN, END, ROOT, NotAsItMustBe, Report


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
@pytest.mark.filterwarnings("default")
def test_the_quick_form_runs(name, tmp_path, capsys):
    assert main([name, "--quick", "--out", str(tmp_path), "--threads", "1"]) == 0
    told = capsys.readouterr().out
    if "skipped: " in told:
        pytest.skip(told[told.index("skipped: ") :].partition("\n")[0])
    assert (tmp_path / name / "results.md").read_text().strip()


@pytest.mark.parametrize("name", names())
def test_each_has_a_verdict_and_results(name):
    told = (ROOT / name / "README.md").read_text()
    assert re.search(r"\*\*Verdict: (agrees|disagrees|cannot tell)", told)
    assert f"make reproduce NAME={name}" in told
    assert len(told.split(BEGIN)[1].split(END)[0].strip()) > 200, "no results: make reproduce writes them"
    for link in re.findall(r"\]\(([\w./-]+\.(?:png|svg|csv|md))\)", told):
        assert (ROOT / name / link).is_file(), link
    assert f"({name}/README.md)" in (ROOT / "README.md").read_text()


def test_what_must_hold_stops_a_run(tmp_path):
    with pytest.raises(NotAsItMustBe, match="x: 1 < 0 does not hold"):
        Report("x", tmp_path).must("1 < 0", False)


def test_an_unknown_name_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["nothing"])
    assert "gradient_problems" in capsys.readouterr().err
