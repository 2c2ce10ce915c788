"""Golden answers: `python -m benchmarks.golden write FILE`, `python -m benchmarks.golden compare FILE`.

`write` keeps what the imported tree answers, tensors and JSON in one safetensors file; `compare` asks everything anew
and lists what differs. A change that claims to leave behaviour alone is compared with the file of the tree before it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import torch
from safetensors import safe_open
from safetensors.torch import save_file

import whence
from benchmarks.golden.answers import Answers, explanations, tables, traces
from benchmarks.golden.differences import Differences
from benchmarks.golden.models import CASES


def run(only: list[str] | None = None) -> Answers:
    """Everything that is asked, model after model."""
    torch.set_num_threads(1)
    answers = Answers()
    jobs = {name: lambda name=name: explanations(answers, name, CASES[name]()) for name in CASES}
    jobs |= {"traces": lambda: traces(answers), "tables": lambda: tables(answers)}
    for name in only or jobs:
        start, before = time.process_time(), len(answers.plain)
        jobs[name]()
        print(f"{name:22} {len(answers.plain) - before:5} answers  {time.process_time() - start:5.1f} s", flush=True)
    return answers


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("write", "compare"))
    parser.add_argument("file")
    parser.add_argument("--only", nargs="+", choices=(*CASES, "traces", "tables"), help="a few of the models")
    parser.add_argument(
        "--close", type=float, default=1e-12, help="how near tensors must be (a change of speed: 1e-10)"
    )
    options = parser.parse_args()
    print(f"whence from {whence.__file__}")
    new = run(options.only)
    if options.what == "write":
        save_file(new.tensors, options.file, metadata={"plain": json.dumps(new.plain)})
        print(f"{len(new.tensors)} tensors and {len(new.plain)} values in {options.file}")
        return 0
    old = Answers()
    with safe_open(options.file, "pt") as file:
        old.plain = json.loads(file.metadata()["plain"])
        old.tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    found = Differences.between(old, new, options.close, only=options.only)
    print("\n".join(found.lines))
    print(f"{len(found.lines)} differences; tensors differ by at most {found.largest:.3g} of their largest value")
    return 1 if found.lines else 0


if __name__ == "__main__":
    sys.exit(main())
