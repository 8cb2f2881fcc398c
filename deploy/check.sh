#!/usr/bin/env bash
# Checks deploy/, helm/ and docs/deployment.md: files parse, every variable is a known setting, versions agree.
# Needs no network. If a program is missing, its checks are skipped with a message.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

failures=0
fail() { echo "deploy/check.sh: $*" >&2; failures=$((failures + 1)); }
skip() { echo "deploy/check.sh: skipped: $*" >&2; }

# All settings as environment variables, from the default configuration: [worker] slots becomes REMUDA_WORKER__SLOTS.
known=$(awk '
    /^\[/ { section = substr($0, 2, index($0, "]") - 2) "__" }
    /^[a-z_]+ *=/ { print "REMUDA_" toupper(section $1) }
' crates/config/src/default.toml)
[ "$(wc -l <<<"$known")" -ge 10 ] || fail "crates/config/src/default.toml: found fewer than 10 settings"
# Variables of the client.
known+=$'\nREMUDA_ENDPOINT\nREMUDA_STREAM_ENDPOINT\nREMUDA_API_KEY\nREMUDA_CONFIG\nREMUDA_CA'

# Reads text from stdin and reports every variable that is not a setting; "$1" names the source.
check_variables() {
    local name
    while read -r name; do
        grep -qxF -- "$name" <<<"$known" || fail "$1: $name is not a setting"
    done < <(grep -oE 'REMUDA_[A-Z][A-Z0-9_]*' | sort -u)
}
while read -r file; do
    check_variables "$file" <"$file"
done < <(find deploy helm docs/deployment.md -type f ! -path deploy/check.sh ! -path deploy/nats.conf)

if ! python3 -c '' 2>/dev/null; then
    skip "JSON and YAML checks, python3 not found"
else
    python3 -m json.tool helm/remuda/values.schema.json >/dev/null || fail "helm/remuda/values.schema.json is not valid JSON"
    deploy/observability/dashboards.py --check || fail "dashboards are out of date"
    if ! python3 -c 'import yaml' 2>/dev/null; then
        skip "YAML checks, python3 has no yaml module"
    else
        # Helm templates are not YAML until they are rendered.
        find deploy helm \( -name '*.yaml' -o -name '*.yml' \) ! -path '*/templates/*' -print0 | xargs -0 python3 -c '
import sys, yaml
try:
    for path in sys.argv[1:]:
        with open(path) as file:
            yaml.safe_load(file)
except yaml.YAMLError as error:
    sys.exit(str(error))
' || fail "a YAML file does not parse"
    fi
fi

# Values that are repeated in several files agree.
workspace_value() { sed -n "s/^$1 = \"\(.*\)\"/\1/p" Cargo.toml | head -n 1; }
grep -qx "appVersion: \"$(workspace_value version)\"" helm/remuda/Chart.yaml ||
    fail "helm/remuda/Chart.yaml: appVersion is not the workspace version $(workspace_value version)"
grep -q "^FROM rust:$(workspace_value rust-version)-" deploy/Dockerfile ||
    fail "deploy/Dockerfile: the builder is not the workspace's Rust $(workspace_value rust-version)"
for directory in migrations proto $(sed -n 's/^members = \[\(.*\)\]/\1/p' Cargo.toml | tr -d '",' | tr -s ' ' '\n' | cut -d/ -f1); do
    grep -qx "!$directory" .dockerignore || fail ".dockerignore excludes $directory from the build context"
done

# Compose has no default password, starts nothing without one, and deploy/secrets.sh writes all of them.
passwords=$(grep -ohE '\$\{[A-Z_]*PASSWORD[^}]*\}' deploy/compose.yaml deploy/observability/compose.yaml)
while read -r reference; do
    case $reference in
    *PASSWORD:\?*deploy/secrets.sh*) ;;
    *) fail "deploy/compose.yaml: $reference must be required, and name deploy/secrets.sh" ;;
    esac
done <<<"$passwords"
written=$(mktemp -d) && trap 'rm -rf "$written"' EXIT
cp deploy/secrets.sh "$written" && "$written/secrets.sh" >/dev/null || fail "deploy/secrets.sh failed"
[ "$(stat -c %a "$written/.env")" = 600 ] || fail "deploy/secrets.sh: deploy/.env can be read by others"
"$written/secrets.sh" >/dev/null 2>&1 && fail "deploy/secrets.sh replaced an existing deploy/.env"
for name in $(grep -oE '[A-Z_]+_PASSWORD' <<<"$passwords" | sort -u); do
    grep -qE "^$name=p[0-9a-f]{64}$" "$written/.env" || fail "deploy/secrets.sh writes no $name"
done
for name in $(grep -oE 'password: \$[A-Z_]+' deploy/nats.conf | cut -d'$' -f2); do
    grep -q "^      $name: " deploy/compose.yaml || fail "deploy/compose.yaml: nats gets no $name"
done
if ! docker compose version >/dev/null 2>&1; then
    skip "docker compose not found"
else
    docker compose -f deploy/compose.yaml --env-file "$written/.env" config --quiet || fail "deploy/compose.yaml"
    docker compose -f deploy/compose.yaml --env-file /dev/null config --quiet 2>/dev/null &&
        fail "deploy/compose.yaml starts without passwords"
fi
# nats-server reads the accounts with the passwords of the environment.
if ! command -v nats-server >/dev/null; then
    skip "deploy/nats.conf, nats-server not found"
else
    (set -a && . "$written/.env" && nats-server -t -c deploy/nats.conf >"$written/nats.log" 2>&1) ||
        fail "deploy/nats.conf: $(tail -n 1 "$written/nats.log")"
fi

# Renders the chart and checks the result; "$@" are helm options.
check_chart() {
    local rendered
    # Without --kube-version, helm uses a default from its build, which is too old in some builds.
    if rendered=$(helm template remuda helm/remuda --kube-version 1.30 --set database.existingSecret=db,nats.rolesSecret=roles "$@" 2>&1); then
        check_variables "helm template $*" <<<"$rendered"
    else
        fail "helm template $*: $rendered"
    fi
}
if ! command -v helm >/dev/null; then
    skip "chart rendering, helm not found"
else
    helm lint helm/remuda --kube-version 1.30 --strict --quiet --set database.existingSecret=db,nats.rolesSecret=roles >&2 || fail "helm lint"
    check_chart
    check_chart --set stream.enabled=false --set workspaces.persistence.enabled=false
    check_chart --set autoscaling.enabled=true --set 'workers[0].pool=a,workers[0].replicas=1,workers[0].slots=4' \
        --set 'workers[0].maxReplicas=3' --set nats.rolesSecret=,nats.existingSecret=n,nats.serversKey=s,nats.credentialsKey=c
    check_chart --set metrics.enabled=true,telemetry.otlpEndpoint=http://collector:4317 --set-json telemetry.sampleRatio=0.1
    check_chart --set metrics.enabled=true,metrics.podMonitor.enabled=true,metrics.podMonitor.labels.release=p \
        --set settings.telemetry.service_name=mine
    check_chart --set tls.existingSecret=t,tls.workersSecret=w,nats.caSecret=c,metrics.enabled=true,metrics.podMonitor.enabled=true \
        --set telemetry.otlpEndpoint=http://collector:4318/ --set 'networkPolicy.clients[0].podSelector.matchLabels.a=b' \
        --set 'networkPolicy.database.peers[0].ipBlock.cidr=10.1.0.0/16'
    check_chart --set networkPolicy.enabled=false,nats.rolesSecret=,nats.allowWithoutCredentials=true
    # Each pod gets the key of its own role only.
    for role in control-plane stream worker; do
        template=${role/worker/workers}
        keys=$(helm template remuda helm/remuda --kube-version 1.30 --set database.existingSecret=db,nats.rolesSecret=roles \
            --show-only "templates/$template.yaml" | grep -A1 'name: roles' | sed -n 's/ *key: //p')
        [ "$keys" = "$role" ] || fail "templates/$template.yaml: keys of NATS are '$keys', want '$role'"
    done
    helm template remuda helm/remuda --kube-version 1.30 --set database.existingSecret=db >/dev/null 2>&1 &&
        fail "the chart renders without credentials for NATS"
fi

[ "$failures" -eq 0 ] || exit 1
echo "deploy/check.sh: ok"
