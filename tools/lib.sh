# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# shellcheck shell=bash
#
# What ./dev and the scripts in tools/ share: messages, progress, root. Sourced, never run.
#
# Messages go to stderr, so that stdout stays the command's own. Colour appears only on a terminal, and not with NO_COLOR set.

if [[ -t 2 && -z ${NO_COLOR:-} && ${TERM:-dumb} != dumb ]]; then
  bold=$'\e[1m' red=$'\e[31m' green=$'\e[32m' dim=$'\e[2m' plain=$'\e[0m'
else
  bold='' red='' green='' dim='' plain=''
fi

say() { printf '%s==>%s %s\n' "$bold" "$plain" "$*" >&2; }
ok() { printf '%s==> %s%s\n' "$green" "$*" "$plain" >&2; }
# die STATUS WHAT [REMEDY]
die() {
  printf '%serror:%s %s\n' "$red" "$plain" "$2" >&2
  [[ -z ${3:-} ]] || printf '  %sremedy:%s %s\n' "$bold" "$plain" "$3" >&2
  exit "$1"
}
usage_error() { die 2 "$1" "see $2 --help"; }

# A script's --help is the comment at its head: from line 2, without the SPDX line, to the first line that is no comment.
help_from_head() { awk 'NR == 1 || /SPDX-License/ { next } !/^#/ { exit } { sub(/^# ?/, ""); if (started || $0 != "") { started = 1; print } }' "$1"; }

# step LABEL COMMAND...: runs a quiet command that may take long. Its output goes to a log, of which the end is shown when it
# fails; meanwhile the elapsed time shows that it lives (in place on a terminal, a line every 15 s elsewhere).
step() {
  local label=$1 log pid status=0 begun=$SECONDS told=0
  shift
  log=$(mktemp) || return 1
  say "$label"
  "$@" >"$log" 2>&1 </dev/null &
  pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    if [[ -t 2 ]]; then
      printf '\r%s    %d s  %.60s%s\e[K' "$dim" $((SECONDS - begun)) "$(tail -n 1 "$log" | tr -d '\r')" "$plain" >&2
    elif ((SECONDS - begun >= told + 15)); then
      told=$((SECONDS - begun))
      printf '    %d s ...\n' "$told" >&2
    fi
    sleep 0.2 # between two looks; nothing depends on its length
  done
  [[ ! -t 2 ]] || printf '\r\e[K' >&2
  wait "$pid" || status=$?
  ((status == 0)) || tail -n 40 "$log" >&2
  rm -f "$log"
  return "$status"
}

# as_root COMMAND...: as root, through sudo when we are not.
as_root() {
  if ((EUID == 0)); then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo -- "$@"
  else
    die 1 "'$*' needs root and there is no sudo" "run this as root, or install sudo"
  fi
}

# privately COMMAND...: as root in a mount namespace of its own with its own bpffs, so that no mount and no pin can reach the host.
privately() {
  # shellcheck disable=SC2016  # expanded by the inner shell
  as_root env "PATH=$PATH" ${SLUICE_BUILD:+"SLUICE_BUILD=$SLUICE_BUILD"} ${NO_COLOR:+"NO_COLOR=$NO_COLOR"} \
    ${SLUICE_FUZZ_SEED:+"SLUICE_FUZZ_SEED=$SLUICE_FUZZ_SEED"} \
    unshare --mount --propagation private -- \
    bash -c 'mount -t bpf bpf /sys/fs/bpf && exec "$@"' privately "$@"
}
