"""Run the families, each in a process of its own with a time limit, and write the table.

    python -m benchmarks.families --out docs/families.md
    python -m benchmarks.families --only llava --only vilt

What is done is kept under `build/families` by the code that it was done with: a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import multiprocessing
import pkgutil
import resource
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import torch

import whence
from benchmarks.families import FAMILIES
from benchmarks.families.check import METHODS, Cell, blame, examine, made, stored
from benchmarks.families.table import counted, line, page

LIMIT = 60  # seconds of work for one family, and ten times as many on the clock
ROOT = Path(__file__).parents[2]


def main() -> None:
    asked = argparse.ArgumentParser(prog="python -m benchmarks.families", description=__doc__.splitlines()[0])
    asked.add_argument("--only", action="append", help="one family (may be repeated)")
    asked.add_argument("--method", action="append", choices=METHODS, help="one method (may be repeated)")
    asked.add_argument("--out", type=Path, help="write the table to this file")
    asked.add_argument("--fresh", action="store_true", help="do again what is done")
    given = asked.parse_args()
    unknown = set(given.only or ()) - set(FAMILIES)
    if unknown:
        asked.error(f"no family {sorted(unknown)[0]!r}; there are {', '.join(FAMILIES)}")
    torch.set_num_threads(1)
    methods = tuple(given.method or METHODS)
    kept = ROOT / "build" / "families" / _fingerprint()
    kept.mkdir(parents=True, exist_ok=True)
    results = {}
    begun = time.perf_counter()
    for name in given.only or FAMILIES:
        file = kept / f"{name.replace(' ', '_').replace(',', '')}.json"
        if given.fresh or given.method or not file.exists():
            results[name] = _in_a_process(name, methods, file)
            if given.method:
                file.unlink()
        else:
            results[name] = json.loads(file.read_text())
        print(line(name, results[name], methods, bool(given.only)), flush=True)
    print(f"\n{len(results)} families in {time.perf_counter() - begun:.0f} s. {counted(results)}")
    if given.out:
        given.out.write_text(page(results))


def _warm_up() -> None:
    """What every family imports is imported once; no backward pass, after which a process must not fork.

    All of Whence is among it: a file that changes while this runs changes nothing.
    """
    for module in pkgutil.walk_packages(whence.__path__, "whence."):
        part = module.name.split(".")[1]
        if part in ("engine", "methods", "adapters") or (
            module.name.count(".") == 1 and not module.ispkg and part[0] != "_"
        ):
            importlib.import_module(module.name)
    with torch.no_grad():
        for name in ("bert", "gpt2", "llama", "t5", "vit"):
            made(FAMILIES[name])


def _in_a_process(name: str, methods: tuple[str, ...], file: Path) -> dict[str, Any]:
    """All cells of one family; one that crashes or does not end is a cell too."""
    file.unlink(missing_ok=True)
    doing = file.with_suffix(".part")
    process = multiprocessing.get_context("fork").Process(target=_work, args=(name, methods, doing))
    doing.write_text("{}")
    process.start()
    process.join(10 * LIMIT)
    ended = not process.is_alive()
    if not ended:
        process.kill()
        process.join()
    cells = json.loads(doing.read_text())
    slow = not ended or process.exitcode == -signal.SIGXCPU
    why = f"stopped after {LIMIT} s" if slow else f"the process ended with code {process.exitcode}"
    for number, method in enumerate([m for m in methods if m not in cells]):
        cells[method] = stored(
            Cell("no end", None, words=why if number == 0 else "not tried: the one before did not end")
        )
    found = {"cells": cells, "seconds": cells.pop("seconds", float(LIMIT))}
    doing.write_text(json.dumps(found, indent=1, ensure_ascii=False))
    doing.rename(file)
    return found


def _work(name: str, methods: tuple[str, ...], file: Path) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT + 5))
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    start = time.process_time()
    cells: dict[str, Any] = {}

    def tell(method: str, cell: Cell) -> None:
        cells[method] = stored(cell)
        cells["seconds"] = time.process_time() - start
        file.write_text(json.dumps(cells, ensure_ascii=False))

    try:
        examine(FAMILIES[name], tell, methods)
    except Exception as error:  # of the family itself, before any method
        for method in methods:
            tell(method, Cell("no end", words=f"cannot be built: {blame(error)[1]}"))


def _fingerprint() -> str:
    files = sorted([*Path(whence.__file__).parent.rglob("*.py"), *Path(__file__).parent.glob("*.py")])
    files += [ROOT / "tests" / "support" / "hf.py"]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


if __name__ == "__main__":
    import transformers

    transformers.logging.set_verbosity_error()
    _warm_up()
    main()
