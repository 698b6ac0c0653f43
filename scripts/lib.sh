# Shared by the scripts beside it: sourced, never run.
#
# ensure_venv EXTRAS [REQUIREMENTS]
#   Makes .venv in the repository and installs roofline into it in editable form.
#   EXTRAS: comma-separated extras of pyproject.toml, may be empty.
#   REQUIREMENTS: further requirements for pip, separated by blanks.
#
# When .venv already holds all that, nothing runs but a checksum. .venv belongs to
# the scripts: one whose install was interrupted is made anew.

ROOT=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
VENV=$ROOT/.venv
# shellcheck disable=SC2034  # used by the scripts that source this file
PY=$VENV/bin/python

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

# Prints a Python that is new enough and can make virtual environments.
find_python() {
    for candidate in ${PYTHON:+"$PYTHON"} ${PYTHON:-python3.13 python3.12 python3.11 python3 python}; do
        if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
        then
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    if [ -n "${PYTHON:-}" ]; then
        say "error: PYTHON=$PYTHON is not a Python 3.11 or newer with the venv module"
    else
        say "error: no Python 3.11 or newer with the venv module found; set PYTHON to one"
    fi
    return 1
}

# True unless PYTHON asks for another interpreter than the one .venv was made with.
python_as_asked() {
    [ -n "${PYTHON:-}" ] || return 0
    which_python='import sys; print(sys.base_prefix, sys.version)'
    [ "$("$PYTHON" -I -S -c "$which_python" 2>/dev/null)" = "$("$PY" -I -S -c "$which_python" 2>/dev/null)" ]
}

# True if .venv holds what is wanted. The stamp is written only after an install
# has succeeded, and goes with .venv. The repository's path is part of it, since an
# editable install points there.
up_to_date() {
    [ -x "$PY" ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ] && python_as_asked
}

ensure_venv() {
    extras=$1
    requirements=${2:-}
    want=$({ printf '%s\n' "$ROOT" "$extras" "$requirements"; cat "$ROOT/pyproject.toml"; } | cksum)
    stamp=$VENV/.stamp-$(printf '%s' "$extras $requirements" | tr -c 'A-Za-z0-9.' '_')
    up_to_date && return 0

    # The marker holds the number of the process that installs. If that still runs,
    # wait for it; if it is gone, it was interrupted and .venv may be half-made.
    marker=$VENV/.installing
    if [ -s "$marker" ] && kill -0 "$(cat "$marker")" 2>/dev/null; then
        say "waiting for the install of process $(cat "$marker") (if that is none of ours, remove .venv)"
        while [ -s "$marker" ] && kill -0 "$(cat "$marker")" 2>/dev/null; do sleep 1; done
        up_to_date && return 0
    fi

    if [ -e "$marker" ] || ! python_as_asked ||
        ! "$PY" -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
    then
        python=$(find_python) || exit 1
        say "making .venv with $python"
        rm -rf "$VENV"
        mkdir "$VENV"
        echo $$ >"$marker"
        "$python" -m venv "$VENV"
    fi

    echo $$ >"$marker"
    say "installing roofline${extras:+[$extras]}${requirements:+ $requirements} into .venv"
    # shellcheck disable=SC2086  # requirements are split on purpose
    "$PY" -m pip install --quiet --quiet --disable-pip-version-check \
        --editable "$ROOT${extras:+[$extras]}" $requirements || {
        say "error: the install failed"
        exit 1
    }
    printf '%s\n' "$want" >"$stamp"
    rm -f "$marker"
}
