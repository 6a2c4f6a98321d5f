{{/* Labels and annotations of an object: the chart's own, and the user's for those that it does not set itself. Called
with the root, and if need be with more labels and more annotations. */}}
{{- define "nfs-csi.metadata" -}}
{{- $top := index . 0 }}
{{- $labels := include "nfs-csi.labels" $top | fromYaml }}
{{- if gt (len .) 1 }}{{ $labels = merge (deepCopy (index . 1)) $labels }}{{ end }}
{{- $annotations := dict }}
{{- if gt (len .) 2 }}{{ $annotations = deepCopy (index . 2 | default dict) }}{{ end }}
{{- $annotations = merge $annotations ($top.Values.customAnnotations | default dict) -}}
labels:
  {{- toYaml $labels | nindent 2 }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Labels and annotations of a part's pods. The chart's version is not among them: a new one that changes nothing else
restarts nothing. Called with the root, the name and the part's values. */}}
{{- define "nfs-csi.podMetadata" -}}
{{- $top := index . 0 }}{{ $part := index . 2 }}
{{- $labels := dict "app" (index . 1) "app.kubernetes.io/name" (include "nfs-csi.name" $top) "app.kubernetes.io/instance" $top.Release.Name -}}
labels:
  {{- merge $labels ($part.podLabels | default dict) ($top.Values.customLabels | default dict) | toYaml | nindent 2 }}
{{- with merge (deepCopy ($part.podAnnotations | default dict)) ($top.Values.customAnnotations | default dict) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What pods have only where the values say so. Called with the root and the part's values. */}}
{{- define "nfs-csi.podExtras" -}}
{{- $part := index . 1 -}}
nodeSelector:
  {{- merge (dict "kubernetes.io/os" "linux") ($part.nodeSelector | default dict) | toYaml | nindent 2 }}
{{- with (index . 0).Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- range $key := list "tolerations" "topologySpreadConstraints" "hostAliases" "dnsConfig" "initContainers" }}
{{- with get $part $key }}
{{ $key }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{/* Defaults, with what the values have instead. Called with these values and the defaults. */}}
{{- define "nfs-csi.overridden" -}}
{{- mergeOverwrite (index . 1 | fromYaml) (deepCopy (index . 0 | default dict)) | toYaml }}
{{- end }}

{{/* The security context of the driver's container. Called with the part's values and the defaults. */}}
{{- define "nfs-csi.driverRights" -}}
{{- $given := deepCopy ((index . 0).securityContext | default dict) }}
{{- with (index . 0).seLinuxOptions }}{{ $_ := set $given "seLinuxOptions" . }}{{ end }}
{{- include "nfs-csi.overridden" (list $given (index . 1)) }}
{{- end }}

{{/* What a container may do that needs no rights: nothing. */}}
{{- define "nfs-csi.unprivileged" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* The same, and not as root. */}}
{{- define "nfs-csi.nonRoot" -}}
{{ include "nfs-csi.unprivileged" . }}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
{{- end }}

{{/* Called with the root, the part's values and the name of the port that answers /healthz. */}}
{{- define "nfs-csi.liveness" -}}
{{- $defaults := "{initialDelaySeconds: 10, periodSeconds: 20, timeoutSeconds: 10, failureThreshold: 5}" -}}
livenessProbe:
  httpGet:
    {{- with (index . 0).Values.metrics.address }}
    host: {{ . | quote }}
    {{- end }}
    path: /healthz
    port: {{ index . 2 }}
  {{- include "nfs-csi.overridden" (list (omit (index . 1).livenessProbe "healthPort") $defaults) | nindent 2 }}
{{- end }}

{{/* Called with the root and the part's values. */}}
{{- define "nfs-csi.readiness" -}}
{{- $defaults := "{periodSeconds: 5, timeoutSeconds: 5, failureThreshold: 3}" -}}
readinessProbe:
  httpGet:
    {{- with (index . 0).Values.metrics.address }}
    host: {{ . | quote }}
    {{- end }}
    path: /readyz
    port: metrics
  {{- include "nfs-csi.overridden" (list (index . 1).readinessProbe $defaults) | nindent 2 }}
{{- end }}

{{/* Leader election. Called with the root. */}}
{{- define "nfs-csi.leaderElection" -}}
- --leader-election
- --leader-election-namespace={{ .Release.Namespace }}
{{- $times := dig "sidecars" "leaderElection" dict .Values.controller | default dict }}
{{- range $flag, $key := dict "lease-duration" "leaseDuration" "renew-deadline" "renewDeadline" "retry-period" "retryPeriod" }}
{{- with get $times $key }}
- --leader-election-{{ $flag }}={{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* The sidecars of the controller, in the order of their ports. */}}
{{- define "nfs-csi.sidecars" -}}
csiProvisioner csiResizer{{ if include "nfs-csi.snapshotter" . }} csiSnapshotter{{ end }}{{ if .Values.attacher.enabled }} csiAttacher{{ end }}
{{- end }}

{{/* The port of a sidecar's metrics. Called with the root and the sidecar's key. Nothing where they are off. */}}
{{- define "nfs-csi.sidecarPort" -}}
{{- $metrics := dig "sidecars" "metrics" dict (index . 0).Values.controller | default dict }}
{{- $offsets := dict "csiProvisioner" 0 "csiResizer" 1 "csiSnapshotter" 2 "csiAttacher" 3 }}
{{- if $metrics.enabled }}{{ add $metrics.port (get $offsets (index . 1)) }}{{ end }}
{{- end }}

{{- define "nfs-csi.portName" -}}
{{ trimPrefix "csi" . | lower }}
{{- end }}

{{/* Names and ports of what the sidecars of a part serve. Called with the root and the part. */}}
{{- define "nfs-csi.metricsPorts" -}}
{{- $top := index . 0 }}
{{- if eq (index . 1) "controller" }}
{{- range $key := splitList " " (include "nfs-csi.sidecars" $top) }}
{{- with include "nfs-csi.sidecarPort" (list $top $key) }}
{{ $key }}: {name: {{ include "nfs-csi.portName" $key }}, port: {{ . }}}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* A sidecar of the controller. Each has a lease of its own: with several replicas one may lead in one pod, and another
in another. Called with a dict: root, key (in the values), args (its own), timeout (its default), and env. */}}
{{- define "nfs-csi.sidecar" -}}
{{- $top := .root }}{{ $key := .key }}{{ $controller := $top.Values.controller }}
{{- $image := get $top.Values.image $key }}
{{- $port := include "nfs-csi.sidecarPort" (list $top $key) -}}
- name: {{ kebabcase $key }}
  image: {{ include "nfs-csi.image" (list $top $image) }}
  imagePullPolicy: {{ $image.pullPolicy }}
  args:
    - --csi-address=/csi/csi.sock
    - --v={{ $controller.logLevel }}
    {{- include "nfs-csi.leaderElection" $top | nindent 4 }}
    - --kube-api-qps={{ $controller.kubeApiQps }}
    - --kube-api-burst={{ $controller.kubeApiBurst }}
    - --timeout={{ dig "sidecars" "timeouts" $key .timeout $controller | default .timeout }}
    {{- with .args }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- with $port }}
    - --http-endpoint={{ include "nfs-csi.metricsHost" $top }}:{{ . }}
    {{- end }}
    {{- with dig "sidecars" "extraArgs" $key list $controller }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .env }}
  env:
    {{- . | nindent 4 }}
  {{- end }}
  {{- with $port }}
  ports:
    - name: {{ include "nfs-csi.portName" $key }}
      containerPort: {{ . }}
  # A sidecar whose lease was taken by another, and that has not ended, is restarted.
  livenessProbe:
    httpGet:
      {{- with $top.Values.metrics.address }}
      host: {{ . | quote }}
      {{- end }}
      path: /healthz/leader-election
      port: {{ . }}
    initialDelaySeconds: 10
    periodSeconds: 20
    timeoutSeconds: 10
  {{- end }}
  securityContext:
    {{- include "nfs-csi.overridden" (list (dig "sidecars" "securityContext" dict $controller) (include "nfs-csi.nonRoot" $top)) | nindent 4 }}
  resources:
    {{- toYaml (get $controller.resources $key) | nindent 4 }}
  volumeMounts:
    - {name: csi, mountPath: /csi}
    - {name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end }}

{{/* What a pod gets of the API server where automountServiceAccountToken puts it into every container: this one only into
those that mount it. */}}
{{- define "nfs-csi.tokenVolume" -}}
- name: token
  projected:
    sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3607}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
      - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
{{- end }}

{{/* The server map, as a directory: the kubelet does not update a file that is mounted by subPath. It is not optional, since
without its ConfigMap the driver would mount servers where they were before. */}}
{{- define "nfs-csi.serversVolume" -}}
- name: servers
  configMap: {name: {{ include "nfs-csi.servers" . }}}
{{- end }}

{{- define "nfs-csi.serversMount" -}}
- {name: servers, mountPath: /etc/nfs-csi, readOnly: true}
{{- end }}

{{/* The kinds of a part's extraVolumes, each after a comma. Called with the part's values and the kinds to leave out. */}}
{{- define "nfs-csi.extraVolumeKinds" -}}
{{- $kinds := list }}
{{- range (index . 0).extraVolumes }}{{ $kinds = concat $kinds (keys (omit . "name")) }}{{ end }}
{{- range $kinds | uniq | sortAlpha }}{{ if not (has . (rest $)) }}, {{ . }}{{ end }}{{ end }}
{{- end }}

{{/* The StorageClass that helm test tries: the one that is named, else the first that the chart makes, else none. */}}
{{- define "nfs-csi.testClass" -}}
{{- $first := dict }}
{{- if .Values.storageClass.create }}{{ $first = .Values.storageClass }}{{ else if .Values.storageClasses }}{{ $first = first .Values.storageClasses }}{{ end }}
{{- dig "storageClass" "" (.Values.test | default dict) | default $first.name | default "" }}
{{- end }}
