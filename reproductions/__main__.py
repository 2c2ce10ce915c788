"""`python -m reproductions NAME|all [--quick] [--out FOLDER]`; without a name it lists what there is."""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback
from pathlib import Path

import torch

import whence
from reproductions.report import ROOT, SKIPPED, NotAsItMustBe, Report
from whence.zoo.training import data

STOPPED = 130


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
    ended = {}
    for name in chosen:
        ended[name] = _run(name, options.quick, options.out)
        if ended[name][0] == STOPPED:
            break
    if len(chosen) > 1:
        print("\n" + "\n".join(f"{name:24}{told}" for name, (_, told) in ended.items()))
    return max(code for code, _ in ended.values())


def _run(name: str, quick: bool, out: Path | None) -> tuple[int, str]:
    """Its exit code, and how it ended."""
    folder = (out / name) if out else Path("build/quick") / name if quick else ROOT / name
    folder.mkdir(parents=True, exist_ok=True)
    report = Report(name, folder, quick)
    print(f"\n━━ {name}: {_title(name)}", flush=True)
    try:
        importlib.import_module(f"reproductions.{name}.run").run(report)
    except data.Absent as error:
        print(f"{SKIPPED}: {error}", file=sys.stdout if quick else sys.stderr)
        return (0 if quick else 2), "skipped: its data are not here"
    except NotAsItMustBe as error:
        print(error, file=sys.stderr)
        return 1, "not as it must be"
    except whence.WhenceError as error:
        print(error, file=sys.stderr)
        return 2, "could not be run"
    except KeyboardInterrupt:
        print(f"\nStopped. make reproduce NAME={name} goes on from here.", file=sys.stderr)
        return STOPPED, "stopped"
    except Exception:
        traceback.print_exc()
        return 1, "broke off"
    else:
        report.finish()
    finally:
        report.keep_time()
    return 0, f"as it must be; skipped: {', '.join(report.skipped)}" if report.skipped else "as it must be"


def _title(name: str) -> str:
    return (importlib.import_module(f"reproductions.{name}.run").__doc__ or "").strip().partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
