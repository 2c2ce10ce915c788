"""The command line on a real bundled model: data on stdout, messages on stderr, codes, files, mistakes."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import whence
from tests.support.processes import full_disk
from whence import zoo
from whence.cli import main
from whence.cli.parser import build_parser

pytest.importorskip("transformers")
TEXT = "How many moons does Jupiter have?"
BASE = ["--model", "zoo:questions"]


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def test_explain_a_text(capsys):
    code, out, err = run(capsys, "explain", *BASE, "--text", TEXT, "--method", "integrated_gradients", "--words")
    assert code == 0
    assert "target NUMERIC" in out
    assert "Jupiter" in out
    assert err == ""


def test_json_is_the_data_and_nothing_else(capsys):
    code, out, _ = run(capsys, "explain", *BASE, "--text", TEXT, "--method", "gradient", "--json", "--target", "HUMAN")
    assert code == 0
    told = json.loads(out)
    direct = whence.explain(whence.load("zoo:questions"), TEXT, method="gradient", target="HUMAN")
    assert told["rows"][0]["maps"][0]["values"] == direct.values[0].tolist()
    assert told["rows"][0]["maps"][0]["units"] == direct.units[0]
    assert told["rows"][0]["maps"][0]["target"] == "HUMAN"


def test_lines_of_a_file_and_of_standard_input(capsys, tmp_path, monkeypatch):
    (tmp_path / "texts").write_text("Who was it?\n\nWhy is that?\n")
    code, out, _ = run(capsys, "explain", *BASE, "--file", str(tmp_path / "texts"), "--method", "gradient", "--json")
    assert code == 0
    assert [row["text"] for row in json.loads(out)["rows"]] == ["Who was it?", "Why is that?"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("Who was it?\n"))
    code, out, _ = run(capsys, "explain", *BASE, "--method", "gradient", "--json")
    assert [row["text"] for row in json.loads(out)["rows"]] == ["Who was it?"]


def test_flags_come_from_the_registry():
    group = next(a for a in build_parser()._actions if hasattr(a, "choices") and a.choices and "explain" in a.choices)
    flags = {flag for action in group.choices["explain"]._actions for flag in action.option_strings}
    for entry in whence.methods.values():
        for name in entry.parameters:
            assert f"--{name.replace('_', '-')}" in flags, name


def test_parameters_reach_the_method(capsys):
    code, out, _ = run(
        capsys, "explain", *BASE, "--text", TEXT, "--method", "integrated_gradients", "--steps", "3", "--rule", "left",
        "--output", "probability", "--json",
    )  # fmt: skip
    told = json.loads(out)
    assert code == 0
    assert told["parameters"]["steps"] == 3
    assert told["parameters"]["rule"] == "left"
    code, out, _ = run(capsys, "explain", *BASE, "--text", TEXT, "--method", "gradient", "--absolute", "true", "--json")
    assert json.loads(out)["parameters"]["absolute"] is True


def test_channels(capsys):
    """A gradient under a LayerNorm: its length by default, and the way out for who asks for the sum."""
    rest = ["--model", "zoo:sentiment", "--text", "a fine film", "--json"]
    values = {}
    for how in ("", "l2", "sum", "sum_abs"):
        code, out, err = run(capsys, "explain", *rest, "--method", "gradient", *(["--channels", how] if how else []))
        assert code == 0
        assert ('channels="l2"' in err) == (how == "sum")
        values[how] = json.loads(out)["rows"][0]["maps"][0]["values"]
    assert values[""] == values["l2"]
    assert not any(values["sum"])
    assert min(values["sum_abs"]) > min(values["l2"]) > 0
    code, out, _ = run(capsys, "compare", *rest, "--methods", "gradient,smoothgrad", "--channels", "max_abs")
    assert code == 0


@pytest.mark.parametrize("ending", ["html", "png", "svg", "pdf", "json", "csv", "safetensors"])
def test_files_by_their_ending(capsys, tmp_path, ending):
    if ending in ("png", "svg", "pdf"):
        pytest.importorskip("matplotlib")
    out = tmp_path / f"a.{ending}"
    code, told, err = run(capsys, "explain", *BASE, "--text", TEXT, "--method", "gradient", "--out", str(out))
    assert (code, told) == (0, "")
    assert str(out) in err
    begins = {"png": b"\x89PNG", "pdf": b"%PDF", "html": b"<!doctype html>", "csv": b"method,", "json": b"{"}
    assert out.read_bytes().startswith(begins.get(ending, b""))
    if ending == "safetensors":
        assert whence.Attribution.load(out).units[0][:3] == ["how", "many", "moon"]


LIMITED = """
import sys
from tests.support.processes import limited
from whence.cli import main
limited(2000)
sys.exit(main(sys.argv[1:]))
"""


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    asked = ["explain", *BASE, "--text", TEXT, "--method", "gradient"]
    for ending in ("html", "pdf", "safetensors"):
        out = tmp_path / f"a.{ending}"
        out.write_text("old")
        with full_disk(2000):
            code, _, err = run(capsys, *asked, "--out", str(out))
        assert code == 2
        assert f"whence: cannot write {out}: File too large.\n" in err
        assert [file.name for file in tmp_path.iterdir()] == [out.name]
        assert out.read_text() == "old"
        out.unlink()
    with open(tmp_path / "told", "w") as told:
        done = subprocess.run(
            [sys.executable, "-c", LIMITED, "methods"], stdout=told, stderr=subprocess.PIPE, text=True, timeout=120
        )
    assert (done.returncode, done.stderr) == (2, "whence: cannot write standard output: File too large\n")


def test_compare(capsys, tmp_path):
    out = tmp_path / "c.html"
    code, told, _ = run(
        capsys, "compare", *BASE, "--text", TEXT, "--methods", "gradient, deeplift", "--out", str(out), "--json"
    )
    assert code == 0
    assert list(json.loads(told)["methods"]) == ["gradient", "deeplift"]
    assert "Do they agree?" in out.read_text()
    code, told, _ = run(
        capsys, "compare", *BASE, "--text", TEXT, "--methods", "gradient", "--check", "--words", "--json"
    )
    assert code == 0
    best = whence.explain(whence.load("zoo:questions"), TEXT, method="gradient").merge_words().top(1)[0][0][0]
    assert json.loads(told)["checks"][0]["first"]["gradient"].lower() == best.lower()


def test_compare_names_each_method_once():
    with pytest.raises(whence.ParameterError, match="'lime' twice"):
        whence.compare(whence.load("zoo:questions"), TEXT, methods=["lime", "gradient", "lime"])


def test_trace(capsys):
    code, out, _ = run(capsys, "trace", *BASE, "--text", TEXT, "--method", "lrp")
    assert code == 0
    assert "conv1d" in out
    assert "at the score" in out


def test_a_method_and_its_parameters(capsys):
    code, out, _ = run(capsys, "methods", "lime")
    assert code == 0
    assert "--samples: int, at least 2" in out


MISTAKES = {
    "no model there": (["explain", "--model", "no/such/folder/x", "--text", "a", "--method", "gradient"], "no/such"),
    **{
        f"no folder {name}": (["explain", "--model", name, "--text", "a", "--method", "gradient"], "There is no folder")
        for name in ("./nope", "../nope", "/x/nope", "~/nope", "nope/", "a/b/nope")
    },
    "no zoo model": (["explain", "--model", "zoo:x", "--text", "a", "--method", "gradient"], "The zoo has no 'x'"),
    "a foreign parameter": (["explain", *BASE, "--text", "a", "--method", "gradient", "--steps", "5"], "no parameter"),
    "a wrong value": (["explain", *BASE, "--text", "a", "--method", "lime", "--samples", "x"], "samples='x' is not"),
    "no label": (["explain", *BASE, "--text", "a", "--method", "gradient", "--target", "X"], "is not a label"),
    "no such method": (["compare", *BASE, "--text", "a", "--methods", "gradint"], "Did you mean 'gradient'"),
    "a method twice": (["compare", *BASE, "--text", "a", "--methods", "lime,gradient, lime"], "has 'lime' twice"),
    "no method": (["compare", *BASE, "--text", "a", "--methods", ","], "at least one"),
    "text and image": (["explain", *BASE, "--text", "a", "--image", "b", "--method", "gradient"], "cannot be combined"),
    "too few seconds": (
        ["explain", *BASE, "--text", "a", "--text", "b", "--second", "c", "--method", "lime"], "for each --text"
    ),
    "an unknown ending": (["explain", *BASE, "--text", "a", "--method", "lime", "--out", "a.xyz"], "ends in none of"),
    "no folder": (
        ["explain", *BASE, "--text", "a", "--method", "gradient", "--out", "no/such/a.html"], "in a folder that exists"
    ),
    "no file": (["explain", *BASE, "--file", "no-such-file", "--method", "gradient"], "no-such-file"),
    "no attention": (["explain", *BASE, "--text", "a", "--method", "rollout"], "attention"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_one_message_and_code_2(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, told = MISTAKES[name]
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert told in err
    assert "Traceback" not in err
    assert run(capsys, *arguments, "--debug")[2].count("Traceback") >= 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["explain", *BASE, "--method", "gradint"], "whence: There is no method 'gradint'. Did you mean 'gradient'?\n"),
        (["trace", *BASE, "--method", "gradint"], "whence: There is no method 'gradint'. Did you mean 'gradient'?\n"),
        (
            ["explain", *BASE, "--method", "lrp", "--seed", "x"],
            "whence: argument --seed: invalid int value: 'x'\n  See whence explain --help.\n",
        ),
        (["explain", "--method", "lrp"], "whence: the following arguments are required: --model\n  See whence explain"),
    ],
)
def test_mistakes_in_flags_are_one_message(arguments, told, capsys):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(told)
    assert "usage" not in err


def test_an_interrupt_while_importing(tmp_path):
    (tmp_path / "torch.py").write_text("raise KeyboardInterrupt\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from whence.__main__ import main; sys.exit(main())"
    asked = ["explain", *BASE, "--text", TEXT, "--method", "gradient"]
    done = subprocess.run([sys.executable, "-c", program, *asked], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "whence: interrupted\n")


# ---- what comes without torch ----


@pytest.mark.parametrize(
    "arguments",
    [[], ["--help"], ["--version"], ["explain", "--help"], ["evaluate", "--help"], ["methods"], ["methods", "lrp"],
     ["metrics"], ["metrics", "aopc"], ["zoo"], ["zoo", "sentiment"], ["completion", "bash"], ["completion", "fish"],
     ["methods", "nothing"], ["explain", *BASE, "--method", "gradint"], ["explode"]],
    ids=" ".join,
)  # fmt: skip
def test_lists_and_help_come_without_torch(arguments, tmp_path, capsys):
    for name in ("torch", "numpy", "transformers"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name} was imported')\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from whence.__main__ import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60)
    assert "was imported" not in done.stderr
    assert done.returncode == (2 if {"nothing", "gradint", "explode"} & set(arguments) else 0), done.stderr
    assert bool(done.stdout) == (done.returncode == 0)
    if not arguments:
        assert "usage: whence" in done.stdout
        assert run(capsys)[:2] == (0, build_parser().format_help())


def test_the_table_is_that_of_the_registries():
    """`make table` writes it anew."""
    from whence.cli import table

    assert table.FILE.read_text(encoding="utf-8") == table.made()
    for known, registry in ((table.methods(), whence.methods), (table.metrics(), whence.metrics)):
        assert list(known) == list(registry)
        for name, entry in registry.items():
            assert known[name].description == entry.description
            for one, other in zip(known[name].parameters.values(), entry.parameters.values(), strict=True):
                same = ("name", "default", "bounds", "optional", "choices")
                assert [getattr(one, n) for n in same] == [getattr(other, n) for n in same]
        for alias, name in known.aliases.items():
            assert known[alias].name == registry[alias].name == name
    assert table.bundled() == list(zoo.ZOO)


# ---- streams, devices and files without an end ----


def shell(line: str, *arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A line of bash in which $W is the program."""
    program = f'W() {{ "{sys.executable}" -m whence "$@"; }}; '
    return subprocess.run(
        ["bash", "-c", program + line, "bash", *arguments], capture_output=True, text=True, timeout=300, cwd=folder
    )


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        ("W methods >&-", 2, "whence: cannot write standard output: it is closed\n"),
        ("W --help >&-", 2, "whence: cannot write standard output: it is closed\n"),
        ("W >/dev/full", 2, "whence: cannot write standard output: No space left on device\n"),
        ("W methods >&- 2>&-", 2, ""),
        ("W methods 2>&- >/dev/null", 0, ""),
        ("W explode 2>&-", 2, ""),
        ("W methods <&- >/dev/null", 0, ""),
        ('W explain "$@" <&-', 2, "whence: There is nothing to explain.\n"),
        ('W explain "$@" --text a >&-', 2, "whence: cannot write standard output: it is closed\n"),
        ('W explain "$@" --text a >&- 2>&- <&- --out a.html', 0, ""),
    ],
)
def test_closed_streams_and_devices_are_one_message_and_an_end(line, code, told, tmp_path):
    done = shell(line, *BASE, "--method", "gradient", folder=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(told)
    assert done.stderr.count("whence:") == bool(told)
    assert "Traceback" not in done.stderr
    if "a.html" in line:
        assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("device", "told"),
    [
        ("</dev/null", "whence: No line has text.\n"),
        ("</dev/zero", "whence: Standard input is not text in UTF-8: it has zero bytes.\n"),
        ("--file /dev/zero", "whence: '/dev/zero' is not text in UTF-8"),
    ],
)
def test_devices_are_one_message_and_an_end(device, told, capsys, monkeypatch):
    with open(device.strip("<") if device.startswith("<") else "/dev/null") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        code, out, err = run(
            capsys, "explain", *BASE, "--method", "gradient", *device.split()[device.startswith("<") :]
        )
    assert (code, out) == (2, "")
    assert err.startswith(told)
    assert err.count("whence:") == 1


def test_a_pipe_without_an_end(monkeypatch, capsys):
    monkeypatch.setattr("whence.cli.data_files._MOST", 1 << 21)
    endless = io.TextIOWrapper(io.BytesIO(b"y\n" * (1 << 21)))
    monkeypatch.setattr(sys, "stdin", endless)
    code, _, err = run(capsys, "explain", *BASE, "--method", "gradient")
    assert code == 2
    assert "Standard input has more than" in err
    assert endless.buffer.tell() < 1 << 22  # nothing is read beyond


EVALUATE = ["evaluate", *BASE, "--methods", "gradient", "--metrics", "comprehensiveness"]


def test_a_long_field_of_a_table(capsys, tmp_path):
    import csv

    before = csv.field_size_limit()
    (tmp_path / "a.csv").write_text(f'text,label\n"Who was it, {"x" * 200_000}",1\n"Why, then?",2\n')
    code, out, err = run(capsys, *EVALUATE, "--file", str(tmp_path / "a.csv"), "--json", "--long", "truncate")
    assert code == 0, err
    assert json.loads(out)["settings"]["rows"] == 2
    assert csv.field_size_limit() == before


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.jsonl", "[" * 200_000, "Line 1 of"),
        ("a.jsonl", '{"text": "a"}\n' + '{"a":' * 200_000, "Line 2 of"),
        ("a.jsonl", '{"text": ' + "1" * 6000 + "}", "Line 1 of"),
        ("a.jsonl", "\x00", "is not text in UTF-8"),
        ("a.csv", "text\na,b,c\n", "Row 1 of"),
        ("a.csv", "text\n\x00\n", "is not text in UTF-8"),
        ("a.csv", "", ""),
        ("a.csv", "text\n", ""),
        ("a.csv", '"' * 100_001, ""),
        ("a.jsonl", '{"text": null}', ""),
        ("a.jsonl", '{"text": []}', ""),
        ("a.jsonl", '{"text": "a", "label": {}}', ""),
        ("a.jsonl", '{"text": "a", "rationale": "[[[[]]]]"}', ""),
        ("a.csv", "text,rationale\na," + "(" * 5000 + "\n", ""),
        ("a.jsonl", '{"text": "\\ud800"}', ""),
    ],
    ids=range(15),
)
def test_malformed_tables_are_one_message_and_code_2(name, content, told, capsys, tmp_path):
    (tmp_path / name).write_text(content)
    code, _, err = run(capsys, *EVALUATE, "--file", str(tmp_path / name))
    assert "Traceback" not in err
    assert (code, told in err) == (2 if told else code, True)
    assert code in (0, 2), err


def test_an_unreadable_file_is_named(capsys, tmp_path):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    code, _, err = run(capsys, "explain", *BASE, "--file", str(tmp_path / "bytes"), "--method", "gradient")
    assert code == 2
    assert "UTF-8" in err


def test_an_error_of_ours_is_code_1_and_an_interrupt_130(capsys, monkeypatch):
    for error, code in ((RuntimeError("x"), 1), (KeyboardInterrupt(), 130)):

        def fails(*args, error=error, **kwargs):
            raise error

        monkeypatch.setattr("whence.api.explain", fails)
        assert run(capsys, "explain", *BASE, "--text", "a", "--method", "gradient")[0] == code


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_commands_and_flags(shell, capsys):
    code, out, _ = run(capsys, "completion", shell)
    assert code == 0
    for word in ("explain", "compare", "zoo", "method"):
        assert word in out
    if shell == "bash":
        done = subprocess.run(
            ["bash", "-c", out + '\nCOMP_WORDS=(whence explain --outp); COMP_CWORD=2; _whence; echo "${COMPREPLY[@]}"'],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.strip() == "--output"


@pytest.mark.parametrize(
    ("line", "word"), [("zoo senti", "sentiment"), ("methods occl", "occlusion"), ("completion fi", "fish")]
)
def test_completion_knows_names(line, word, capsys):
    fish = run(capsys, "completion", "fish")[1]
    assert any(line.split()[0] in told and word in told.split() for told in fish.replace("'", " ").splitlines())
    bash = run(capsys, "completion", "bash")[1]
    asked = f'COMP_WORDS=(whence {line}); COMP_CWORD=2; _whence; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", f"{bash}\n{asked}"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == word


def test_the_zoos_list_without_one_of_its_models(capsys, tmp_path, monkeypatch):
    import shutil

    from whence import zoo

    for name in zoo.ZOO:
        (tmp_path / name).mkdir()
        shutil.copy(zoo.FOLDER / name / "card.json", tmp_path / name)
    (tmp_path / "questions" / "card.json").write_text('{"name": ')
    (tmp_path / "molecules" / "card.json").write_text("{}")
    (tmp_path / "language" / "card.json").unlink()
    monkeypatch.setattr(zoo, "FOLDER", tmp_path)
    code, out, err = run(capsys, "zoo")
    assert code == 0
    assert "zoo:sentiment" in out
    for name in ("questions", "molecules", "language"):
        assert f"zoo:{name}" not in out
        assert f"zoo:{name}" in err
    code, out, err = run(capsys, "zoo", "questions")
    assert (code, out) == (2, "")
    assert "card of zoo:questions cannot be read" in err


def test_whences_warnings_are_a_line_each(capsys, monkeypatch):
    def explained(*args, **kwargs):
        whence.errors.warn("gradient: this\nis \x1b[31modd.")
        return whence.explain(*args, **kwargs)

    monkeypatch.setattr("whence.api.explain", explained)
    code, _, err = run(capsys, "explain", *BASE, "--text", TEXT, "--method", "gradient")
    assert (code, err) == (0, "whence: warning: gradient: this is \\x1b[31modd.\n")


def test_a_tab_parts_pairs_only_where_the_task_reads_pairs(capsys, tmp_path):
    (tmp_path / "lines").write_text("one\ttwo\n")
    rest = ["--file", str(tmp_path / "lines"), "--method", "input_x_gradient", "--json"]
    told = {}
    for model in ("sentiment", "language"):
        code, out, _ = run(capsys, "explain", "--model", f"zoo:{model}", *rest)
        assert code == 0
        told[model] = json.loads(out)["rows"][0]["text"]
    assert told == {"sentiment": ["one", "two"], "language": "one\ttwo"}


def test_a_flag_of_several_methods_tells_each_ones_default_and_all_choices(capsys):
    with pytest.raises(SystemExit):
        main(["explain", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert "default 25 (smoothgrad), 100 (expected_gradients)" in told
    assert "adaptive" in told
    assert "|rescale|" in told
    assert "default 2.0; lrp" in told  # one method, one default


def test_colour_only_where_it_is_wanted(monkeypatch, capsys):
    a = whence.explain(whence.load("zoo:questions"), TEXT, method="gradient")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    a.show()
    assert "\x1b" not in capsys.readouterr().out  # not a terminal
    monkeypatch.setenv("FORCE_COLOR", "1")
    a.show()
    assert "\x1b[48;2;" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    a.show()
    assert "\x1b" not in capsys.readouterr().out


def test_a_narrow_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    whence.explain(whence.load("zoo:questions"), TEXT * 4, method="gradient").show()
    plain = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in capsys.readouterr().out.splitlines()]
    assert max(len(line) for line in plain[2:]) <= 60


@pytest.mark.parametrize("width", [30, 80, 400])
def test_tables_fit_into_the_terminal(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    names = "gradient,input_x_gradient,smoothgrad,deconvnet,guided_backprop,lrp"
    for arguments in (["zoo"], ["compare", *BASE, "--text", TEXT, "--methods", names]):
        code, out, _ = run(capsys, *arguments)
        assert code == 0
        assert max(map(len, out.splitlines())) <= max(width, 40)  # a column has 20 letters at least
    for name in names.split(","):
        assert f"vs {name}" in out
        assert out.count(f"\n{name} ") == (1 if width == 400 else out.count("\nmethod ") + 1)
    monkeypatch.delenv("COLUMNS")
    wide = run(capsys, "zoo")[1].splitlines()  # into a pipe: a line each
    assert len(wide) == 2 + len(zoo.ZOO)


def test_from_a_shell():
    done = subprocess.run(
        [sys.executable, "-m", "whence", "explain", *BASE, "--method", "gradient"], input="Who was it?\n",
        capture_output=True, text=True, timeout=120, env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "target HUMAN" in done.stdout


def test_a_terminal_of_ascii_letters():
    done = subprocess.run(
        [sys.executable, "-m", "whence", "explain", *BASE, "--method", "input_x_gradient"],
        input=f"{TEXT} {TEXT} Who was it?\n", capture_output=True, text=True, timeout=120,
        env={**os.environ, "NO_COLOR": "1", "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(r"^  \w+ +\|#+ +\+", done.stdout, re.M)
    assert re.search(r"^  \.\.\. and \d+ more$", done.stdout, re.M)
    assert re.search(r"#\| +-[\d.]", done.stdout)
