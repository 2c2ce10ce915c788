"""Completion scripts for shells, made from the parser."""

from __future__ import annotations

import argparse


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """Words that may follow `whence` and each of its commands."""
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](_commands(parser))


def _commands(parser: argparse.ArgumentParser) -> dict[str, dict[str, list[str]]]:
    """Each command's flags, and the words that each flag takes."""
    group = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return {
        name: {
            flag: [str(choice) for choice in action.choices or ()]
            for action in made._actions
            for flag in action.option_strings
            if flag.startswith("--")
        }
        for name, made in group.choices.items()
    }


def _bash(commands: dict[str, dict[str, list[str]]]) -> str:
    cases = []
    for name, flags in commands.items():
        after = "".join(
            f'      {flag}) COMPREPLY=($(compgen -W "{" ".join(words)}" -- "$word")); return;;\n'
            for flag, words in flags.items()
            if words
        )
        cases.append(
            f'    {name}) case "$before" in\n{after}      esac\n'
            f'      COMPREPLY=($(compgen -W "{" ".join(flags)}" -- "$word"));;\n'
        )
    return (
        "_whence() {\n"
        '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"\n'
        "  if [ $COMP_CWORD -eq 1 ]; then\n"
        f'    COMPREPLY=($(compgen -W "{" ".join(commands)}" -- "$word")); return\n'
        '  fi\n  case "${COMP_WORDS[1]}" in\n' + "".join(cases) + "  esac\n}\n"
        "complete -o default -F _whence whence\n"
    )


def _zsh(commands: dict[str, dict[str, list[str]]]) -> str:
    return "autoload -U +X bashcompinit && bashcompinit\n" + _bash(commands)


def _fish(commands: dict[str, dict[str, list[str]]]) -> str:
    lines = [f"complete -c whence -n __fish_use_subcommand -f -a '{' '.join(commands)}'"]
    for name, flags in commands.items():
        for flag, words in flags.items():
            given = f" -x -a '{' '.join(words)}'" if words else ""
            lines.append(f"complete -c whence -n '__fish_seen_subcommand_from {name}' -l {flag.lstrip('-')}{given}")
    return "\n".join(lines) + "\n"
