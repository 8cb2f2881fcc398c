{{- define "remuda.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 30 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 30 characters, which leaves room for the suffix "-worker-" and a pool name of 24. */}}
{{- define "remuda.fullname" -}}
{{- $name := include "remuda.name" . -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $full .Values.fullnameOverride | trunc 30 | trimSuffix "-" -}}
{{- end -}}

{{- define "remuda.selector" -}}
app.kubernetes.io/name: {{ include "remuda.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .pool }}
remuda/pool: {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "remuda.labels" -}}
{{ include "remuda.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "remuda.serviceAccount" -}}
{{- $default := ternary (include "remuda.fullname" .) "default" .Values.serviceAccount.create -}}
{{- default $default .Values.serviceAccount.name -}}
{{- end -}}

{{- define "remuda.claim" -}}
{{- default (printf "%s-workspaces" (include "remuda.fullname" .)) .Values.workspaces.existingClaim -}}
{{- end -}}

{{/* A setting as text. Helm reads numbers as floats and would write 1000000 as 1e+06. */}}
{{- define "remuda.text" -}}
{{- if kindIs "slice" . -}}{{ join "," . }}
{{- else if not (kindIs "float64" .) -}}{{ . }}
{{- else if eq (floor .) . -}}{{ printf "%.0f" . }}
{{- else -}}{{ . }}
{{- end -}}
{{- end -}}

{{/* A hash of the settings only: pods are replaced if settings change, not if just the chart version changes. */}}
{{- define "remuda.checksum" -}}
{{- (include (print $.Template.BasePath "/configmap.yaml") . | fromYaml).data | toYaml | sha256sum -}}
{{- end -}}

{{/* Fields of every pod. Takes root and, except for the migration, component, pool and the component's values. */}}
{{- define "remuda.pod" -}}
automountServiceAccountToken: false
# The variables that Kubernetes adds for a service called remuda would look like settings.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- if .component }}
serviceAccountName: {{ include "remuda.serviceAccount" .root }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "remuda.selector" . | nindent 8 }}
{{- end }}
{{- end -}}

{{- define "remuda.container" -}}
image: {{ printf "%s:%s" .root.Values.image.repository (default .root.Chart.AppVersion .root.Values.image.tag) | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end -}}

{{- define "remuda.storeUrl" -}}
- name: REMUDA_STORE__URL
  valueFrom:
    secretKeyRef:
      name: {{ required "database.existingSecret is required: the name of a Secret with the database's URL" .Values.database.existingSecret }}
      key: {{ .Values.database.key }}
{{- end -}}

{{/* The environment of every service: settings from the ConfigMap and from Secrets. Takes root and component. */}}
{{- define "remuda.environment" -}}
{{- $nats := .root.Values.nats -}}
{{- $shared := and $nats.existingSecret (or $nats.serversKey $nats.credentialsKey) -}}
{{- if not (or $nats.rolesSecret $shared $nats.allowWithoutCredentials) -}}
{{- fail "nats.rolesSecret is required: a Secret with the keys of `remuda nats-auth`. Without credentials, whoever reaches NATS reads the output of all tools; nats.allowWithoutCredentials=true accepts that." -}}
{{- end -}}
{{- if and $nats.rolesSecret $shared -}}
{{- fail "nats.rolesSecret and nats.existingSecret exclude each other" -}}
{{- end -}}
envFrom:
  - configMapRef:
      name: {{ include "remuda.fullname" .root }}
env:
  {{- include "remuda.storeUrl" .root | nindent 2 }}
  {{- with $nats.rolesSecret }}
  - name: REMUDA_NATS__KEY
    valueFrom:
      secretKeyRef:
        name: {{ . }}
        key: {{ $.component }}
  {{- end }}
  {{- if include "remuda.tlsSecret" . }}
  - name: REMUDA_TLS__CERTIFICATE
    value: /etc/remuda/tls/tls.crt
  - name: REMUDA_TLS__KEY
    value: /etc/remuda/tls/tls.key
  {{- end }}
  {{- if and $nats.existingSecret $nats.serversKey }}
  - name: REMUDA_NATS__SERVERS
    valueFrom:
      secretKeyRef:
        name: {{ $nats.existingSecret }}
        key: {{ $nats.serversKey }}
  {{- end }}
{{- end -}}

{{/* The Secret with the certificate of a component's ports. Takes root and component. Tools can read the files of their worker,
     so workers do not get the certificate of the API. */}}
{{- define "remuda.tlsSecret" -}}
{{- ternary .root.Values.tls.workersSecret .root.Values.tls.existingSecret (eq .component "worker") -}}
{{- end -}}

{{/* Mounts of Secrets: shared credentials and the authority of NATS, and the certificate of the ports. Takes root and component. */}}
{{- define "remuda.secretMounts" -}}
{{- if and .root.Values.nats.existingSecret .root.Values.nats.credentialsKey -}}
- name: nats
  mountPath: /etc/remuda/nats
  readOnly: true
{{- end }}
{{- if .root.Values.nats.caSecret }}
- name: nats-ca
  mountPath: /etc/remuda/nats-ca
  readOnly: true
{{- end }}
{{- if include "remuda.tlsSecret" . }}
- name: tls
  mountPath: /etc/remuda/tls
  readOnly: true
{{- end }}
{{- end -}}

{{- define "remuda.secretVolumes" -}}
{{- if and .root.Values.nats.existingSecret .root.Values.nats.credentialsKey -}}
- name: nats
  secret:
    secretName: {{ .root.Values.nats.existingSecret }}
    defaultMode: 0440
    items:
      - key: {{ .root.Values.nats.credentialsKey }}
        path: nats.creds
{{- end }}
{{- with .root.Values.nats.caSecret }}
- name: nats-ca
  secret:
    secretName: {{ . }}
    defaultMode: 0440
    items:
      - key: ca.crt
        path: ca.crt
{{- end }}
{{- with include "remuda.tlsSecret" . }}
- name: tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{- define "remuda.scheme" -}}
{{- ternary "https" "http" (not (empty .Values.tls.existingSecret)) -}}
{{- end -}}

{{/* Probes of a port; takes root and port. Readiness requires that the database and NATS respond. Liveness only requires an
     open port, because a restart repairs neither of them. Kubernetes has no gRPC probe with TLS. */}}
{{- define "remuda.probes" -}}
readinessProbe:
  {{- if .root.Values.tls.existingSecret }}
  httpGet:
    path: /readyz
    port: {{ .port }}
    scheme: HTTPS
  {{- else }}
  grpc:
    port: {{ .port }}
  {{- end }}
  periodSeconds: 5
  timeoutSeconds: 3
livenessProbe:
  tcpSocket:
    port: {{ .port }}
  periodSeconds: 10
  timeoutSeconds: 3
  failureThreshold: 6
lifecycle:
  preStop:
    exec:
      # Waits until load balancers send no new connections to this pod.
      command: [sleep, "5"]
{{- end -}}

{{/* The service name in traces, unless the settings define one. Continues the env list of remuda.environment. */}}
{{- define "remuda.serviceName" -}}
{{- if not (hasKey (default dict .root.Values.settings.telemetry) "service_name") -}}
- name: REMUDA_TELEMETRY__SERVICE_NAME
  value: remuda-{{ .component }}
{{- end }}
{{- end -}}

{{/* Scrape annotations, for a Prometheus that does not use the PodMonitor. Takes root and component. */}}
{{- define "remuda.scrape" -}}
{{- if and .root.Values.metrics.enabled (not .root.Values.metrics.podMonitor.enabled) -}}
prometheus.io/scrape: "true"
prometheus.io/port: {{ .root.Values.metrics.port | quote }}
prometheus.io/path: /metrics
prometheus.io/scheme: {{ ternary "https" "http" (ne (include "remuda.tlsSecret" .) "") }}
{{- end }}
{{- end -}}

{{- define "remuda.metricsPort" -}}
{{- if .Values.metrics.enabled -}}
- name: metrics
  containerPort: {{ .Values.metrics.port }}
{{- end }}
{{- end -}}
