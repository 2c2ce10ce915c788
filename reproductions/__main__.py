"""`python -m reproductions NAME|all [--quick] [--out FOLDER]`; without a name it lists what there is."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

import torch

import whence
from reproductions.report import ROOT, SKIPPED, NotAsItMustBe, Report


def names() -> list[str]:
    return sorted(file.parent.name for file in ROOT.glob("*/run.py"))


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m reproductions", description=__doc__)
    parser.add_argument("name", nargs="?", choices=[*names(), "all"], help="which experiment, or all of them")
    parser.add_argument("--quick", action="store_true", help="a few rows: checks that it runs, and what is certain")
    parser.add_argument("--out", type=Path, help="where results go (the experiment's own folder; quick: build/quick)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args(given)
    if options.name is None:
        print("\n".join(f"{name:24}{_title(name)}" for name in names()))
        return 0
    torch.set_num_threads(options.threads)
    chosen = names() if options.name == "all" else [options.name]
    return max(_run(name, options.quick, options.out) for name in chosen)


def _run(name: str, quick: bool, out: Path | None) -> int:
    folder = (out / name) if out else Path("build/quick") / name if quick else ROOT / name
    folder.mkdir(parents=True, exist_ok=True)
    report = Report(name, folder, quick)
    print(f"\n━━ {name}: {_title(name)}", flush=True)
    try:
        importlib.import_module(f"reproductions.{name}.run").run(report)
    except whence.FileError as error:
        print(f"{SKIPPED}: {error}", file=sys.stdout if quick else sys.stderr)
        return 0 if quick else 2
    except NotAsItMustBe as error:
        print(error, file=sys.stderr)
        return 1
    else:
        report.finish()
    finally:
        report.keep_time()
    return 0


def _title(name: str) -> str:
    return (importlib.import_module(f"reproductions.{name}.run").__doc__ or "").strip().partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
