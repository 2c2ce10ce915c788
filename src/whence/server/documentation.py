"""The API's own page of documentation, made from its OpenAPI description: no script, nothing from outside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whence.views.components import text

_INTRODUCTION = (
    "Everything that the page shows comes from here. Bodies and answers are JSON; an error is "
    '{"error": what is wrong and what to do, "kind": a word for programs}. The same as data: '
)


def page(described: Mapping[str, Any]) -> str:
    """All routes and the bodies that they take."""
    routes = "".join(
        _route(path, method, one) for path, methods in described["paths"].items() for method, one in methods.items()
    )
    bodies = "".join(_body(name, one) for name, one in described["components"]["schemas"].items())
    title = f"{described['info']['title']} {described['info']['version']}: the JSON API"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        '<link rel="stylesheet" href="/static/style.css"></head><body class="whence"><main class="narrow">'
        f'<h1>{text(title)}</h1><p>{text(_INTRODUCTION)}<a href="/openapi.json">/openapi.json</a>. '
        f'<a href="/">The page</a>.</p><h2>Requests</h2>{routes}<h2>Bodies</h2>{bodies}</main></body></html>'
    )


def _route(path: str, method: str, one: Mapping[str, Any]) -> str:
    given = [
        f"<tr><td><code>{text(p['name'])}</code></td><td>{text(_kind(p['schema']))}</td>"
        f"<td>{text(p.get('description', ''))}</td></tr>"
        for p in one.get("parameters", ())
    ]
    content = one.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    body = f'<p>Body: <a href="#{text(_kind(content))}">{text(_kind(content))}</a></p>' if content else ""
    table = f'<div class="scroll"><table><tbody>{"".join(given)}</tbody></table></div>' if given else ""
    return (
        f"<section><h3><code>{text(method.upper())} {text(path)}</code></h3>"
        f"<p>{text(one.get('description', ''))}</p>{body}{table}</section>"
    )


def _body(name: str, one: Mapping[str, Any]) -> str:
    needed = set(one.get("required", ()))
    lines = "".join(
        f"<tr><td><code>{text(key)}</code></td><td>{text(_kind(field))}{' (required)' if key in needed else ''}</td>"
        f"<td>{text(field.get('description', ''))}</td></tr>"
        for key, field in one.get("properties", {}).items()
    )
    table = f'<div class="scroll"><table><tbody>{lines}</tbody></table></div>' if lines else ""
    return f'<section id="{text(name)}"><h3>{text(name)}</h3><p>{text(one.get("description", ""))}</p>{table}</section>'


def _kind(schema: Mapping[str, Any]) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return " | ".join(map(repr, schema.get("enum", [schema.get("const")])))
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return {"null": "nothing", "object": "object"}.get(str(schema.get("type")), str(schema.get("type", "anything")))
