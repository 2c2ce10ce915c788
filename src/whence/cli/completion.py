"""Completion scripts for shells, made from the parser."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

Commands = dict[str, dict[str, list[str]]]
_PLAIN = ""  # in a flag's place: the words that a command takes without one


def script(shell: str, parser: argparse.ArgumentParser, names: Mapping[str, list[str]]) -> str:
    """Words that may follow `whence` and each of its commands; `names` may follow some of them."""
    found = _commands(parser)
    for command, words in names.items():
        found[command][_PLAIN] = words
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](found)


def _commands(parser: argparse.ArgumentParser) -> Commands:
    """Each command's flags, and the words that each flag takes."""
    group = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return {
        name: {
            flag: [str(choice) for choice in action.choices or ()]
            for action in made._actions
            for flag in action.option_strings or [_PLAIN]
            if flag.startswith("--") or flag == _PLAIN
        }
        for name, made in group.choices.items()
    }


def _bash(commands: Commands) -> str:
    cases = []
    for name, flags in commands.items():
        after = "".join(
            f'      {flag}) COMPREPLY=($(compgen -W "{" ".join(words)}" -- "$word")); return;;\n'
            for flag, words in flags.items()
            if words and flag != _PLAIN
        )
        offered = [*filter(None, flags), *flags.get(_PLAIN, [])]
        cases.append(
            f'    {name}) case "$before" in\n{after}      esac\n'
            f'      COMPREPLY=($(compgen -W "{" ".join(offered)}" -- "$word"));;\n'
        )
    return (
        "_whence() {\n"
        '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"\n'
        "  if [ $COMP_CWORD -eq 1 ]; then\n"
        f'    COMPREPLY=($(compgen -W "{" ".join(commands)}" -- "$word")); return\n'
        '  fi\n  case "${COMP_WORDS[1]}" in\n' + "".join(cases) + "  esac\n}\n"
        "complete -o default -F _whence whence\n"
    )


def _zsh(commands: Commands) -> str:
    return "autoload -U +X bashcompinit && bashcompinit\n" + _bash(commands)


def _fish(commands: Commands) -> str:
    lines = [f"complete -c whence -n __fish_use_subcommand -f -a '{' '.join(commands)}'"]
    for name, flags in commands.items():
        after = f"complete -c whence -n '__fish_seen_subcommand_from {name}'"
        for flag, words in flags.items():
            given = f" -a '{' '.join(words)}'" if words else ""
            if flag != _PLAIN:
                lines.append(f"{after} -l {flag.removeprefix('--')}{' -x' * bool(words)}{given}")
            elif words:
                lines.append(f"{after} -f{given}")
    return "\n".join(lines) + "\n"
