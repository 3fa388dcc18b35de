#!/bin/bash
# Slurm epilog: keeps the stores of this node below their limit.
#
#   install -m 0755 epilog.sh /etc/slurm/preheat-epilog.sh        Epilog=/etc/slurm/preheat-epilog.sh
#
# `preheat collect` deletes what nobody needs any more. What another job on this node has loaded is leased and
# stays, as does what came within the last 24 hours, and what the configuration keeps warm. It fails open, like
# the prolog: an epilog that ends with another code than 0 drains the node as well.

PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
cd / || true
trap 'exit 0' EXIT

say() {
  printf 'preheat-epilog: %s\n' "$*" >&2
  logger -t preheat-epilog -p daemon.info -- "job ${SLURM_JOB_ID:-?}: $*" 2>/dev/null || true
}

read_settings() {
  names=() stores=/var/cache/preheat states=/var/lib/preheat account=preheat
  preheat=/opt/preheat/bin/preheat epilog_seconds=60 store_max_size=20GiB
  environment=(LANG=C.UTF-8)
  if ! "$BASH" -n /etc/preheat/slurm.conf; then
    say "/etc/preheat/slurm.conf cannot be used; nothing is collected"
    return 1
  fi
  # shellcheck source=docs/recipes/slurm/preheat.conf
  . /etc/preheat/slurm.conf
  return 0
}

as_account() {
  local user=()
  if [ "$(id -u)" -eq 0 ] && [ "$account" != root ]; then
    user=(setpriv --reuid "$account" --regid "$account" --clear-groups --no-new-privs --inh-caps=-all)
  fi
  "${user[@]}" env -i PATH="$PATH" HOME="$states/$name" PREHEAT_STORE="$stores/$name" \
    PREHEAT_STATE="$states/$name" "${environment[@]}" "$@"
}

collect() {
  for name in "${names[@]}"; do
    [ -d "$stores/$name" ] || continue
    as_account "$preheat" collect --config "/etc/preheat/$name.toml" --max-size "$store_max_size" 2>&1 |
      while IFS= read -r line; do say "$name: $line"; done
    code=${PIPESTATUS[0]}
    case $code in
      0) ;;
      3) say "$name: what is in use is more than $store_max_size" ;;
      75) say "$name: another process collects already" ;;
      *) say "$name: the collection ended with code $code" ;;
    esac
  done
}

exec </dev/null
read_settings || exit 0
if [ "${1:-}" = within-limit ]; then
  collect
  exit 0
fi
timeout --kill-after=5 "$epilog_seconds" "$BASH" "$0" within-limit &
child=$!
trap 'kill "$child" 2>/dev/null; say "ended from outside"; exit 0' TERM INT HUP
wait "$child"
code=$?
[ "$code" -eq 0 ] || say "ended with code $code; the next epilog goes on from there"
exit 0
