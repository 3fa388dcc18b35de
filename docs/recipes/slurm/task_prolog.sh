#!/bin/bash
# Slurm task prolog: tells the tasks of a job where the packages are. It runs as the job's user, and each line
# `export NAME=value` that it prints becomes a variable of the task.
#
#   install -m 0755 task_prolog.sh /etc/slurm/preheat-task-prolog.sh
#                                                            TaskProlog=/etc/slurm/preheat-task-prolog.sh
#
# What the job has set itself stays in front. Nothing is printed where nothing can be said.

PATH=/usr/local/bin:/usr/bin:/bin
export PATH
trap 'exit 0' EXIT

names=() stores=/var/cache/preheat account=preheat
# shellcheck source=docs/recipes/slurm/preheat.conf
[ -r /etc/preheat/slurm.conf ] && . /etc/preheat/slurm.conf >/dev/null 2>&1

place=${PREHEAT_STORE:-}
for name in "${names[@]}"; do
  [ -d "$stores/$name" ] && place=${place:+$place:}$stores/$name
done
# A worker loads only what it, root, or one of these accounts has written.
uid=$(id -u "$account" 2>/dev/null) || uid=
if [ -n "$place" ] && [ -n "$uid" ]; then
  printf 'export PREHEAT_STORE=%s\n' "$place"
  printf 'export PREHEAT_TRUSTED_UIDS=%s\n' "${PREHEAT_TRUSTED_UIDS:+$PREHEAT_TRUSTED_UIDS,}$uid"
fi
exit 0
