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
known+=$'\nREMUDA_ENDPOINT\nREMUDA_STREAM_ENDPOINT\nREMUDA_API_KEY\nREMUDA_CONFIG'

# Reads text from stdin and reports every variable that is not a setting; "$1" names the source.
check_variables() {
    local name
    while read -r name; do
        grep -qxF -- "$name" <<<"$known" || fail "$1: $name is not a setting"
    done < <(grep -oE 'REMUDA_[A-Z][A-Z0-9_]*' | sort -u)
}
while read -r file; do
    check_variables "$file" <"$file"
done < <(find deploy helm docs/deployment.md -type f ! -path deploy/check.sh)

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

# Renders the chart and checks the result; "$@" are helm options.
check_chart() {
    local rendered
    # Without --kube-version, helm uses a default from its build, which is too old in some builds.
    if rendered=$(helm template remuda helm/remuda --kube-version 1.30 --set database.existingSecret=db "$@" 2>&1); then
        check_variables "helm template $*" <<<"$rendered"
    else
        fail "helm template $*: $rendered"
    fi
}
if ! command -v helm >/dev/null; then
    skip "chart rendering, helm not found"
else
    helm lint helm/remuda --kube-version 1.30 --strict --quiet --set database.existingSecret=db >&2 || fail "helm lint"
    check_chart
    check_chart --set stream.enabled=false --set workspaces.persistence.enabled=false
    check_chart --set autoscaling.enabled=true --set 'workers[0].pool=a,workers[0].replicas=1,workers[0].slots=4' \
        --set 'workers[0].maxReplicas=3' --set nats.existingSecret=n,nats.serversKey=s,nats.credentialsKey=c
    check_chart --set metrics.enabled=true,telemetry.otlpEndpoint=http://collector:4317,telemetry.sampleRatio=0.1
    check_chart --set metrics.enabled=true,metrics.podMonitor.enabled=true,metrics.podMonitor.labels.release=p \
        --set settings.telemetry.service_name=mine
fi

[ "$failures" -eq 0 ] || exit 1
echo "deploy/check.sh: ok"
