"""Train one of the zoo's models: `python -m whence.zoo.training NAME [--seeds 3] [--out FOLDER]`."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from whence.errors import ParameterError, WhenceError
from whence.zoo import card
from whence.zoo.training.loop import Recipe, Trained
from whence.zoo.training.recipes import RECIPES

ONE_SEED = 0.02  # how far a training may be from its card, where the card knows of one seed only


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m whence.zoo.training", description=__doc__)
    parser.add_argument("name", choices=RECIPES, help="which model")
    parser.add_argument("--seeds", type=int, default=1, help="train with the seeds 0 … n − 1 and say how they spread")
    parser.add_argument("--out", type=Path, help="where to write the model of seed 0 with its card (nowhere)")
    parser.add_argument("--checkpoint", type=Path, help="where to keep the state of a long training, to go on from it")
    parser.add_argument("--threads", type=int, default=1, help="the shipped models were trained on one: the same sums")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    recipe = RECIPES[options.name]
    scores: list[dict[str, float]] = []
    first = None
    try:
        for seed in range(options.seeds):
            start = time.perf_counter()
            trained = recipe.train(seed, *_checkpoint(recipe, options.checkpoint, seed))
            trained.wrapped.model.half().float().eval()  # as it will be shipped
            scores.append(recipe.measure(trained.wrapped))
            first = first or trained
            told = ", ".join(f"{name} {value:.4g}" for name, value in scores[-1].items())
            print(f"{options.name}, seed {seed}: {told}; {time.perf_counter() - start:.0f} s", flush=True)
    except WhenceError as error:
        print(error, file=sys.stderr)
        return 2
    if options.out and first:
        write(options.out, options.name, recipe, first, scores)
        print(f"written to {options.out}")
        return 0
    score, told = next(iter(card(options.name)["measured"].items()))
    mean = statistics.mean(found[score] for found in scores)
    spread = told["spread"] or ONE_SEED
    fits = abs(mean - told["mean"]) <= spread
    print(f"{score} {mean:.4g}; the card says {told['mean']:.4g} ± {spread:.2g}: "
          + ("within" if fits else "OUTSIDE"))  # fmt: skip
    return 0 if fits else 1


def _checkpoint(recipe: Recipe, given: Path | None, seed: int) -> tuple[Path, ...]:
    if given is not None and not recipe.resumable:
        raise ParameterError("This training takes minutes and keeps no checkpoint.\n  Leave out --checkpoint.")
    return () if given is None else (given.with_name(f"{given.name}.{seed}"),)


def write(folder: Path, name: str, recipe: Recipe, first: Trained, scores: list[dict[str, float]]) -> None:
    """The first model, in half precision, with its card and examples."""
    model = first.wrapped.model
    folder.mkdir(parents=True, exist_ok=True)
    first.write(folder)
    if hasattr(first.wrapped.processor, "save_pretrained"):
        first.wrapped.processor.save_pretrained(folder)
    if first.config is None:
        model.config.architectures, model.config.dtype = [type(model).__name__], torch.float32
        model.config.save_pretrained(folder)
    else:
        told = {"class": type(model).__name__, **first.config}
        (folder / "config.json").write_text(json.dumps(told, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    state = model.state_dict()
    names = {value.data_ptr(): name for name, value in reversed(state.items())}  # a shared tensor once
    half = {name: state[name].half().contiguous() for name in names.values()}
    save_file(half, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    (folder / "examples.json").write_text(json.dumps(recipe.examples, ensure_ascii=False, indent=1) + "\n")
    measured = {}
    for score in scores[0]:
        values = [found[score] for found in scores]
        measured[score] = {
            "shipped": round(values[0], 4),
            "seeds": [round(value, 4) for value in values],
            "mean": round(statistics.mean(values), 4),
            "spread": round(2 * statistics.stdev(values), 4) if len(values) > 1 else None,
        }
    told = {
        "name": name,
        **recipe.card,
        "parameters": sum(p.numel() for p in model.parameters()),
        "bytes": (folder / "model.safetensors").stat().st_size,
        "measured": measured,
        "retrain": f"python -m whence.zoo.training {name} --seeds {len(scores)}",
    }
    (folder / "card.json").write_text(json.dumps(told, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
