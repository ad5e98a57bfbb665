#!/usr/bin/env bash
# Draw a study's ladder figure, 1200 x 600 pixels, with a headless Chromium.
#
# usage: scripts/ladder_picture.sh STORAGE STUDY OUT.png
#   PYTHON    the Python that has largebatch installed; that of .venv if not given
#   CHROMIUM  the browser; chromium if not given
set -euo pipefail

storage=${1:?usage: scripts/ladder_picture.sh STORAGE STUDY OUT.png}
study=${2:?usage: scripts/ladder_picture.sh STORAGE STUDY OUT.png}
picture=$(realpath -m "${3:?usage: scripts/ladder_picture.sh STORAGE STUDY OUT.png}")
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"${PYTHON:-$root/.venv/bin/python}" - "$storage" "$study" "$work/ladder.html" <<'PY'
import sys

from hpo.dashboard.figures import ladder
from hpo.dashboard.view import load_study_view

storage, study, page = sys.argv[1:]
view = load_study_view(study, storage)
figure = ladder(view.result, view.posterior).update_layout(width=1200, height=600, font_size=15, margin_t=60)
figure.write_html(page, config={"displayModeBar": False})
# the figure alone: without the margin that browsers give a page
with open(page, "a", encoding="utf-8") as html:
    html.write("<style>body { margin: 0 }</style>")
PY

"${CHROMIUM:-chromium}" --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --hide-scrollbars \
    --disable-background-networking --disable-component-update --disable-sync --user-data-dir="$work/profile" \
    --window-size=1200,600 --virtual-time-budget=8000 --screenshot="$picture" "file://$work/ladder.html" 2>"$work/log" \
    || { cat "$work/log" >&2; exit 1; }
[ -s "$picture" ] || { cat "$work/log" >&2; exit 1; }
