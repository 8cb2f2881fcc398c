#!/bin/sh
# Writes deploy/.env with new passwords for compose. Run it once, before the first start: PostgreSQL keeps the first password.
set -eu
file="$(dirname "$0")/.env"
[ ! -e "$file" ] || { echo "$file exists already; remove it to create new passwords" >&2; exit 1; }
umask 077
{
    echo "# Passwords of compose, from deploy/secrets.sh. Keep them secret."
    for name in POSTGRES NATS_CONTROL_PLANE NATS_WORKER NATS_STREAM NATS_ADMIN GRAFANA; do
        # 256 random bits. A letter first: nats-server takes what begins like a number for one.
        echo "${name}_PASSWORD=p$(od -An -v -tx1 -N32 /dev/urandom | tr -d ' \n')"
    done
} >"$file.new"
mv "$file.new" "$file"
echo "wrote $file"
