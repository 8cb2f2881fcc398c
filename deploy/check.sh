#!/usr/bin/env bash
# Keeps deploy/, helm/ and docs/deployment.md honest: files parse, every variable is a known setting, versions agree.
# No network. What a missing program would check is skipped with a message.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

failures=0
fail() { echo "deploy/check.sh: $*" >&2; failures=$((failures + 1)); }
skip() { echo "deploy/check.sh: skipped: $*" >&2; }

# Settings as variables, from the one file that holds them all: [worker] slots becomes REMUDA_WORKER__SLOTS.
known=$(awk '
    /^\[/ { section = substr($0, 2, index($0, "]") - 2) "__" }
    /^[a-z_]+ *=/ { print "REMUDA_" toupper(section $1) }
' crates/config/src/default.toml)
[ "$(wc -l <<<"$known")" -ge 10 ] || fail "crates/config/src/default.toml: too few settings found"
# Those of the client.
known+=$'\nREMUDA_ENDPOINT\nREMUDA_STREAM_ENDPOINT\nREMUDA_API_KEY\nREMUDA_CONFIG'

# Reads text, tells of every variable in it that is no setting.
check_variables() {
    local name
    while read -r name; do
        grep -qxF -- "$name" <<<"$known" || fail "$1: $name is no setting"
    done < <(grep -oE 'REMUDA_[A-Z][A-Z0-9_]*' | sort -u)
}
while read -r file; do
    check_variables "$file" <"$file"
done < <(find deploy helm docs/deployment.md -type f ! -path deploy/check.sh)

if ! python3 -c '' 2>/dev/null; then
    skip "no python3: JSON and YAML"
else
    python3 -m json.tool helm/remuda/values.schema.json >/dev/null || fail "values.schema.json is not JSON"
    deploy/observability/dashboards.py --check || fail "dashboards are not what dashboards.py makes"
    if ! python3 -c 'import yaml' 2>/dev/null; then
        skip "python3 has no yaml module: YAML"
    else
        # The templates are no YAML before helm has rendered them.
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

# What stands in two places agrees.
of_workspace() { sed -n "s/^$1 = \"\(.*\)\"/\1/p" Cargo.toml | head -n 1; }
grep -qx "appVersion: \"$(of_workspace version)\"" helm/remuda/Chart.yaml ||
    fail "helm/remuda/Chart.yaml: appVersion is not the workspace's version $(of_workspace version)"
grep -q "^FROM rust:$(of_workspace rust-version)-" deploy/Dockerfile ||
    fail "deploy/Dockerfile: the builder is not Rust $(of_workspace rust-version), the workspace's"
for directory in migrations proto $(sed -n 's/^members = \[\(.*\)\]/\1/p' Cargo.toml | tr -d '",' | tr -s ' ' '\n' | cut -d/ -f1); do
    grep -qx "!$directory" .dockerignore || fail ".dockerignore keeps $directory out of the image's build"
done

# Renders the chart and checks the outcome; "$@" are values.
check_chart() {
    local rendered
    # helm takes the version of the cluster from how it was built, which for some builds is too old.
    if rendered=$(helm template remuda helm/remuda --kube-version 1.30 --set database.existingSecret=db "$@" 2>&1); then
        check_variables "helm template $*" <<<"$rendered"
    else
        fail "helm template $*: $rendered"
    fi
}
if ! command -v helm >/dev/null; then
    skip "no helm: rendering the chart"
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
echo "deploy/check.sh: fine"
