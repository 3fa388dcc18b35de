#!/bin/bash
# Slurm prolog: brings the packages of the programs in /etc/preheat/slurm.conf to this node before the job.
#
#   install -m 0755 prolog.sh /etc/slurm/preheat-prolog.sh        Prolog=/etc/slurm/preheat-prolog.sh
#
# It fails open. A prolog that ends with another code than 0 drains the node, so this one ends with 0 whatever
# happens: without preheat, without a remote, with a full disk, after its time is over. The job then compiles,
# as it would without preheat. What went wrong is in the log of slurmd and in syslog.

PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
cd / || true
trap 'exit 0' EXIT

say() {
  printf 'preheat-prolog: %s\n' "$*" >&2
  logger -t preheat-prolog -p daemon.info -- "job ${SLURM_JOB_ID:-?}: $*" 2>/dev/null || true
}

read_settings() {
  # What a file from before this version does not say.
  names=() remote='' stores=/var/cache/preheat states=/var/lib/preheat account=preheat
  preheat=/opt/preheat/bin/preheat prolog_seconds=120 answer_seconds=20 build_seconds=0 processors=(all)
  environment=(LANG=C.UTF-8)
  if ! "$BASH" -n /etc/preheat/slurm.conf; then
    say "/etc/preheat/slurm.conf cannot be used; nothing is warmed"
    return 1
  fi
  # shellcheck source=docs/recipes/slurm/preheat.conf
  . /etc/preheat/slurm.conf
  return 0
}

# A command as the account, with an environment that is known: what slurmd was started with does not count.
as_account() {
  local user=()
  if [ "$(id -u)" -eq 0 ] && [ "$account" != root ]; then
    user=(setpriv --reuid "$account" --regid "$account" --clear-groups --no-new-privs --inh-caps=-all)
  fi
  "${user[@]}" "${affinity[@]}" env -i PATH="$PATH" HOME="$states/$name" PREHEAT_STORE="$stores/$name" \
    PREHEAT_STATE="$states/$name" "${environment[@]}" "$@" 9>&-
}

# Runs a command and says each line of what it says; its exit code is the command's.
tell() {
  as_account "$@" 2>&1 | while IFS= read -r line; do say "$name: $line"; done
  return "${PIPESTATUS[0]}"
}

make_directories() {
  # A directory that is there already is left as it is.
  [ -d "$stores/$name" ] || install -d -o "$account" -g "$account" -m 0755 "$stores/$name" || return 1
  [ -d "$states/$name" ] || install -d -o "$account" -g "$account" -m 0700 "$states/$name"
}

# What jobs with so many processors load, brought here or built here.
warm_for() {
  local config=/etc/preheat/$name.toml
  affinity=()
  [ "$1" = all ] || affinity=(taskset --cpu-list "0-$(($1 - 1))")
  # Mostly everything is here already: that takes a few tenths of a second and asks nobody.
  if as_account "$preheat" would-hit --config "$config" >/dev/null 2>&1; then
    say "$name: warm already, with processors: $1"
    return
  fi
  if [ -n "$remote" ]; then
    tell "$preheat" pull --config "$config" --timeout "$answer_seconds" "$remote/$name" ||
      say "$name: the pull ended with code $?; the job begins all the same"
  fi
  if [ "$build_seconds" -gt 0 ]; then
    tell "$preheat" warm --config "$config" --once --fail-open --timeout "$build_seconds" ||
      say "$name: the build ended with code $?; the job begins all the same"
  fi
  tell "$preheat" would-hit --config "$config" || say "$name: not everything is warm; the job compiles the rest"
}

warm() {
  # One after the other: jobs that begin together on this node wait for the first one's download.
  if touch /run/preheat-prolog.lock; then
    exec 9>/run/preheat-prolog.lock
    flock 9
  fi
  if [ ! -x "$preheat" ]; then
    say "$preheat is not there; nothing is warmed"
    return
  fi
  for name in "${names[@]}"; do
    if ! make_directories; then
      say "$name: $stores/$name or $states/$name cannot be made; nothing of it is warmed"
      continue
    fi
    for count in "${processors[@]}"; do
      warm_for "$count"
    done
  done
}

exec </dev/null
read_settings || exit 0
if [ "${1:-}" = within-limit ]; then
  warm
  exit 0
fi
# Everything happens in a child that is ended when the time is over, and with us.
timeout --kill-after=5 "$prolog_seconds" "$BASH" "$0" within-limit &
child=$!
trap 'kill "$child" 2>/dev/null; say "ended from outside"; exit 0' TERM INT HUP
wait "$child"
code=$?
case $code in
  0) ;;
  124 | 137) say "not done after $prolog_seconds s; the job begins all the same" ;;
  *) say "ended with code $code; the job begins all the same" ;;
esac
exit 0
