"""Tokens: show who the caller is and, for admins, create and revoke tokens."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Response
from pydantic import BaseModel, ConfigDict, Field

from hpo.service.answers import Answer
from hpo.service.auth import create_token
from hpo.service.context import ADMINS, Reader, Shared
from hpo.service.refusal import RefusedError
from hpo.service.reply import json_reply
from hpo.service.routes.common import BIGGEST_NUMBER, error_responses
from storage.records import Token

router = APIRouter(tags=["tokens"])


class TokenRequest(BaseModel):
    """A request for a token."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    owner: str = Field(min_length=1, max_length=100, examples=["ada"])
    scope: Literal["read", "submit", "admin"] = Field(
        description="Each scope includes the scopes before it."
    )
    name: str = Field("", max_length=100, description="Purpose of the token.", examples=["laptop"])
    expires_in_days: float | None = Field(30, gt=0, le=3650, description="null: never.")


class TokenAnswer(Answer):
    """A token, without its secret."""

    id: int
    name: str
    owner: str
    scopes: list[str]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


class NewTokenAnswer(Answer):
    """A new token with its secret, which is shown only once."""

    secret: str = Field(examples=["lb_..."])
    token: TokenAnswer


class TokensAnswer(Answer):
    """Tokens, oldest first."""

    tokens: list[TokenAnswer]


class SelfAnswer(Answer):
    """The user that the token belongs to."""

    owner: str
    scopes: list[str]
    expires_at: datetime | None


@router.get("/me", response_model=SelfAnswer, summary="Who am I", responses=error_responses())
def me(who: Reader) -> Response:
    """Return the owner and the scopes of the request's token."""
    return json_reply(
        {"owner": who.owner, "scopes": sorted(who.scopes), "expires_at": who.expires_at}
    )


@router.get(
    "/tokens", response_model=TokensAnswer, summary="List tokens", responses=error_responses()
)
def tokens(who: Reader, context: Shared) -> Response:
    """List your own tokens or, for admins, all tokens. Secrets are not stored."""
    found = context.open_store().tokens(None if who.allows("admin") else who.owner)
    return json_reply({"tokens": [_values(token) for token in found]})


@router.post(
    "/tokens",
    status_code=201,
    response_model=NewTokenAnswer,
    summary="Make a token",
    dependencies=[ADMINS],
    responses=error_responses(),
)
def create(context: Shared, body: TokenRequest) -> Response:
    """Create a token; its secret is in this response and is never shown again."""
    lifetime = None if body.expires_in_days is None else timedelta(days=body.expires_in_days)
    secret, token = create_token(
        context.open_store(), owner=body.owner, scope=body.scope, name=body.name, lifetime=lifetime
    )
    return json_reply({"secret": secret, "token": _values(token)}, status=201)


@router.delete(
    "/tokens/{number}", status_code=204, summary="Revoke a token", responses=error_responses(404)
)
def revoke(
    who: Reader,
    context: Shared,
    number: Annotated[int, Path(ge=1, le=BIGGEST_NUMBER, description="The token's id.")],
) -> Response:
    """Revoke your own token or, for admins, any token. It takes effect here at once, elsewhere within a second."""
    store = context.open_store()
    if not any(
        token.id == number for token in store.tokens(None if who.allows("admin") else who.owner)
    ):
        raise RefusedError(404, f"there is no token {number} that you may revoke")
    store.revoke_token(number)
    context.tokens.forget()
    return Response(status_code=204)


def _values(token: Token) -> dict[str, Any]:
    return {
        "id": token.id,
        "name": token.name,
        "owner": token.owner,
        "scopes": sorted(token.scopes),
        "created_at": token.created_at,
        "expires_at": token.expires_at,
        "revoked_at": token.revoked_at,
        "last_used_at": token.last_used_at,
    }
