"""Login for browsers: a token starts a session, whose cookie scripts cannot read and other sites cannot use."""

from __future__ import annotations

import html
from datetime import timedelta
from typing import Annotated
from urllib.parse import parse_qs, urlsplit

from anyio.to_thread import run_sync
from fastapi import APIRouter, Query, Request, Response
from starlette.responses import HTMLResponse, RedirectResponse

from hpo.service.auth import start_session
from hpo.service.context import COOKIE, ServerContext, Shared, check_own_page, look_up_token
from hpo.service.refusal import RefusedError

router = APIRouter(include_in_schema=False)

COOKIE_SECONDS = 30 * 24 * 3600
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Log in</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 26rem; margin: 15vh auto; padding: 0 1rem; }}
input, button {{ font: inherit; width: 100%; box-sizing: border-box; padding: .5rem; margin-top: .5rem; }}
.wrong {{ color: #c22; }}
</style></head><body>
<h1>largebatch</h1>
<form method="post" action="login">
<input type="hidden" name="next" value="{next}">
<label>Token <input name="token" type="password" value="{token}" autocomplete="current-password" required
autofocus></label>
<button>Log in</button>
</form>
<p class="wrong" role="alert">{wrong}</p>
<p>A token begins with <code>lb_</code>. <code>hpo token create</code> makes one on the server's machine.</p>
</body></html>
"""
# Not "Referrer-Policy: no-referrer" here: with that policy, a browser would not send the origin of the form.
_POLICY = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "Cache-Control": "no-store",
}


@router.get("/login")
async def login(
    request: Request,
    context: Shared,
    token: Annotated[str | None, Query(max_length=200)] = None,
    next: Annotated[str, Query(max_length=500)] = "",
) -> Response:
    """Log in with the token in the link that `hpo serve` prints; without a token, show a form.

    A link from another site only fills in the form; otherwise that site could log its visitors in with its own token.
    """
    if token is None or request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        return _page(next, token=token or "")
    return await _enter(request, context, token, next)


@router.post("/login")
async def log_in(request: Request, context: Shared) -> Response:
    """Log in with the secret that the form sends."""
    check_own_page(request)
    form = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=10)
    return await _enter(
        request, context, form.get("token", [""])[0].strip(), form.get("next", [""])[0]
    )


@router.post("/logout")
async def log_out(request: Request, context: Shared) -> Response:
    """End the session and delete its cookie; the token itself stays valid."""
    check_own_page(request)
    session = request.cookies.get(COOKIE)
    if session is not None:
        await run_sync(context.tokens.end_session, context.open_store(), session)
    answer = RedirectResponse("login", 303, headers={"Cache-Control": "no-store"})
    answer.delete_cookie(COOKIE, path=_home(context), httponly=True, samesite="lax")
    return answer


async def _enter(request: Request, context: ServerContext, token: str, after: str) -> Response:
    try:
        who = await look_up_token(request, token)
    except RefusedError as error:
        if error.status != 401:
            raise
        return _page(after, str(error), 401)
    request.state.principal = who
    answer = RedirectResponse(
        _own_path(after, _home(context)),
        303,
        headers={"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"},
    )
    secret, length = await run_sync(
        start_session, context.open_store(), who, timedelta(seconds=COOKIE_SECONDS)
    )
    answer.set_cookie(
        COOKIE,
        secret,
        max_age=int(length.total_seconds()),
        path=_home(context),
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https" or context.config.tls_certificate is not None,
    )
    return answer


def _home(context: ServerContext) -> str:
    """Return the path of the first page; the cookie applies to the paths below it."""
    return f"{context.config.path}/"


def _own_path(path: str, home: str) -> str:
    """Return ``path`` if it is on this server, else the server's first page."""
    try:
        elsewhere = urlsplit(path).netloc
    except ValueError:  # no valid URL
        return home
    own = path.startswith(home) and not path.startswith("//") and not elsewhere
    return path if own and path.isprintable() and "\\" not in path else home


def _page(after: str, wrong: str = "", status: int = 200, token: str = "") -> Response:
    return HTMLResponse(
        _PAGE.format(
            next=html.escape(after, quote=True),
            wrong=html.escape(wrong),
            token=html.escape(token, quote=True),
        ),
        status,
        headers=_POLICY,
    )
