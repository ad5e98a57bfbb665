"""/docs: the API reference for readers, built from its OpenAPI document; it loads nothing from other hosts."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping
from typing import Any

_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title} API</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root {{ color-scheme: light dark; --line: #8884; --soft: #8881; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }}
code, pre {{ font: 14px/1.45 ui-monospace, monospace; }}
pre {{ background: var(--soft); padding: .7rem; overflow-x: auto; border-radius: .3rem; }}
details {{ border: 1px solid var(--line); border-radius: .3rem; margin: .4rem 0; padding: .4rem .7rem; }}
summary {{ cursor: pointer; }} summary code {{ font-weight: 600; }}
.method {{ display: inline-block; min-width: 4.2rem; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ text-align: left; vertical-align: top; padding: .25rem .7rem .25rem 0; border-top: 1px solid var(--line); }}
h2 {{ margin-top: 2rem; text-transform: capitalize; }}
</style></head><body>
<h1>{title} {version}</h1>
<p>{description}</p>
<p>Machine-readable version: <a href="openapi.json">openapi.json</a>.</p>
"""


def page(document: Mapping[str, Any]) -> str:
    """Return the whole page for an OpenAPI document."""
    info = document["info"]
    parts = [
        _HEAD.format(
            title=_text(info["title"]),
            version=_text(info["version"]),
            description=_text(info.get("description", "")),
        )
    ]
    for tag in document.get("tags", []):
        parts.append(f"<h2>{_text(tag['name'])}</h2><p>{_text(tag.get('description', ''))}</p>")
        parts += [_operation(document, *each) for each in _operations(document, tag["name"])]
    return "".join([*parts, "</body></html>\n"])


def _operations(
    document: Mapping[str, Any], tag: str
) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if tag in operation.get("tags", []):
                yield path, method.upper(), operation


def _operation(
    document: Mapping[str, Any], path: str, method: str, operation: Mapping[str, Any]
) -> str:
    lines = [
        f"<details><summary><code><span class=method>{method}</span>{_text(path)}</code> "
        f"{_text(operation.get('summary', ''))}</summary><p>{_text(operation.get('description', ''))}</p>"
    ]
    if operation.get("parameters"):
        lines.append("<table><tr><th>parameter<th>in<th>type<th></tr>")
        lines += [
            f"<tr><td><code>{_text(each['name'])}</code><td>{each['in']}"
            f"<td>{_text(_type(each['schema']))}{'' if each.get('required') else ', optional'}"
            f"<td>{_text(each.get('description') or each['schema'].get('description', ''))}</tr>"
            for each in operation["parameters"]
        ]
        lines.append("</table>")
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if body:
        lines.append(
            f"<p>Body:</p>{_example(document, body['schema'])}{_fields(document, body['schema'])}"
        )
    for status, answer in operation.get("responses", {}).items():
        if status.startswith("2"):
            lines.append(f"<p>{status} {_text(answer.get('description', ''))}</p>")
            lines += [
                f"<p><code>{_text(kind)}</code></p>{_example(document, content.get('schema', {}))}"
                for kind, content in answer.get("content", {}).items()
                if content.get("schema")
            ]
    refused = [
        (status, answer)
        for status, answer in operation.get("responses", {}).items()
        if status >= "4"
    ]
    if refused:
        lines.append("<p>Errors:</p><table>")
        lines += [
            f"<tr><td>{status}<td>{_text(answer.get('description', ''))}</tr>"
            for status, answer in refused
        ]
        lines.append("</table>")
    return "".join([*lines, "</details>\n"])


def _fields(document: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    schema = _resolved(document, schema)
    rows = [
        f"<tr><td><code>{_text(name)}</code><td>{_text(_type(each))}"
        f"{'' if name in schema.get('required', ()) else ', optional'}<td>{_text(each.get('description', ''))}</tr>"
        for name, each in schema.get("properties", {}).items()
    ]
    return f"<table>{''.join(rows)}</table>" if rows else ""


def _example(document: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    value = _value(document, schema, 0)
    return (
        f"<pre>{_text(value if isinstance(value, str) else json.dumps(value, indent=2))}</pre>"
        if value
        else ""
    )


def _value(document: Mapping[str, Any], schema: Mapping[str, Any], depth: int) -> Any:
    """Return an example for the schema: its own example if it has one, else the names of the types."""
    schema = _resolved(document, schema)
    if schema.get("examples"):
        return schema["examples"][0]
    if "default" in schema and schema["default"] is not None:
        return schema["default"]
    if "properties" in schema and depth < 6:
        return {
            name: _value(document, each, depth + 1) for name, each in schema["properties"].items()
        }
    if schema.get("type") == "array":
        return [_value(document, schema.get("items", {}), depth + 1)]
    return None if _type(schema) == "null" else _type(schema)


def _resolved(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    options = [each for each in schema.get("anyOf", []) if each.get("type") != "null"]
    if options and not schema.get("examples"):
        return _resolved(document, options[0])
    reference = schema.get("$ref")
    return document["components"]["schemas"][reference.rpartition("/")[2]] if reference else schema


def _type(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("format") or schema.get("type", "any"))


def _text(text: Any) -> str:
    return html.escape(str(text))
