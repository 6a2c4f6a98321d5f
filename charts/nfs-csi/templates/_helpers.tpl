{{/* What names and labels end in: nothing for the driver of the common name, the release for any other. */}}
{{- define "nfs-csi.suffix" -}}
{{- if ne .Values.driver.name "nfs.csi.k8s.io" }}-{{ .Release.Name }}{{ end }}
{{- end }}

{{- define "nfs-csi.controller" -}}
{{- .Values.controller.name | default (printf "csi-nfs-controller%s" (include "nfs-csi.suffix" .)) | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "nfs-csi.node" -}}
{{- .Values.node.name | default (printf "csi-nfs-node%s" (include "nfs-csi.suffix" .)) | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "nfs-csi.controllerAccount" -}}
{{- .Values.serviceAccount.controller | default (printf "%s-sa" (include "nfs-csi.controller" .)) }}
{{- end }}

{{- define "nfs-csi.nodeAccount" -}}
{{- .Values.serviceAccount.node | default (printf "%s-sa" (include "nfs-csi.node" .)) }}
{{- end }}

{{/* The node plugin's folder on the host. */}}
{{- define "nfs-csi.pluginDir" -}}
{{- .Values.kubeletDir | trimSuffix "/" }}/plugins/{{ if eq .Values.driver.name "nfs.csi.k8s.io" }}csi-nfsplugin{{ else }}{{ .Values.driver.name }}{{ end }}
{{- end }}

{{- define "nfs-csi.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- with .Values.customLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* An image's full name. Called with the top and one of the image's values. */}}
{{- define "nfs-csi.image" -}}
{{- $top := index . 0 }}{{ $image := index . 1 -}}
{{- $name := $image.repository -}}
{{- if not $name }}{{ fail "image.nfs.repository is empty: set it to the name under which you pushed this driver's image (make push IMAGE=REGISTRY/nfs-csi), or to localhost/nfs-csi if you loaded its archive into the nodes (make image)" }}{{ end -}}
{{- if hasSuffix "/nfsplugin" $name }}{{ fail (printf "image.nfs.repository=%s is the program of csi-driver-nfs: set image.nfs.repository and image.nfs.tag to an image of this driver" $name) }}{{ end -}}
{{- if hasPrefix "/" $name }}{{ $name = printf "%s%s" (trimSuffix "/" $top.Values.image.baseRepo) $name | trimPrefix "/" }}{{ end -}}
{{ $name }}:{{ $image.tag | default (printf "v%s" $top.Chart.AppVersion) }}{{ with $image.digest }}@{{ . }}{{ end }}
{{- end }}

{{/* Whether external-snapshotter runs beside the controller. */}}
{{- define "nfs-csi.snapshotter" -}}
{{- $wanted := .Values.controller.enableSnapshotter | toString -}}
{{- $known := or (.Capabilities.APIVersions.Has "snapshot.storage.k8s.io/v1") (and .Values.externalSnapshotter.enabled .Values.externalSnapshotter.customResourceDefinitions.enabled) -}}
{{- if or (eq $wanted "true") (and (eq $wanted "auto") $known) }}true{{ end }}
{{- end }}

{{/* A sidecar's arguments that all of them have. Each has a lease of its own: with several replicas one may lead in one
pod, and another in another. */}}
{{- define "nfs-csi.sidecarArgs" -}}
- --csi-address=/csi/csi.sock
- --v={{ .Values.controller.logLevel }}
- --leader-election
- --leader-election-namespace={{ .Release.Namespace }}
- --kube-api-qps={{ .Values.controller.kubeApiQps }}
- --kube-api-burst={{ .Values.controller.kubeApiBurst }}
{{- end }}

{{/* What a sidecar may do: nothing. */}}
{{- define "nfs-csi.unprivileged" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Called with the root and the name of the port that answers /healthz. */}}
{{- define "nfs-csi.liveness" -}}
livenessProbe:
  httpGet:
    {{- with (index . 0).Values.metrics.address }}
    host: {{ . | quote }}
    {{- end }}
    path: /healthz
    port: {{ index . 1 }}
  initialDelaySeconds: 10
  periodSeconds: 20
  timeoutSeconds: 10
  failureThreshold: 5
{{- end }}

{{- define "nfs-csi.metricsHost" -}}
{{- $address := .Values.metrics.address | default "" }}
{{- if contains ":" $address }}[{{ $address }}]{{ else }}{{ $address }}{{ end }}
{{- end }}

{{- define "nfs-csi.readiness" -}}
readinessProbe:
  httpGet:
    {{- with .Values.metrics.address }}
    host: {{ . | quote }}
    {{- end }}
    path: /readyz
    port: metrics
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}

{{/* Where the controller runs: on different nodes if there are several, and on the control plane's only where that is
     asked for. Distributions give the label of these nodes different values, so that it exists is enough; each term of a
     given affinity is one of several that are enough alone. */}}
{{- define "nfs-csi.controllerAffinity" -}}
{{- $affinity := deepCopy .Values.controller.affinity }}
{{- if not $affinity }}
{{- $others := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" (dict "app" (include "nfs-csi.controller" .))) }}
{{- $preferred := list (dict "weight" 100 "podAffinityTerm" $others) }}
{{- $_ := set $affinity "podAntiAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" $preferred) }}
{{- end }}
{{- if or .Values.controller.runOnControlPlane .Values.controller.runOnMaster }}
{{- $node := $affinity.nodeAffinity | default dict }}
{{- $required := $node.requiredDuringSchedulingIgnoredDuringExecution | default dict }}
{{- $terms := list }}
{{- range $required.nodeSelectorTerms | default (list dict) }}
{{- $expressions := append (.matchExpressions | default list) (dict "key" "node-role.kubernetes.io/control-plane" "operator" "Exists") }}
{{- $terms = append $terms (merge (dict "matchExpressions" $expressions) .) }}
{{- end }}
{{- $_ := set $node "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) }}
{{- $_ := set $affinity "nodeAffinity" $node }}
{{- end }}
{{- toYaml $affinity }}
{{- end }}

{{/* In octal digits. YAML has read a number without quotes already: 0777 as 511, as csi-driver-nfs's flag would. */}}
{{- define "nfs-csi.mountPermissions" -}}
{{- $permissions := .Values.driver.mountPermissions }}
{{- if kindIs "string" $permissions }}{{ $permissions }}{{ else }}{{ printf "%o" (int64 $permissions) }}{{ end }}
{{- end }}

{{/* The given values of csi-driver-nfs's chart that have no effect here, separated by commas. */}}
{{- define "nfs-csi.ignoredValues" -}}
{{- $found := list }}
{{- range list "rbac.name" "feature.propagateHostMountOptions" "controller.useTarCommandInSnapshot" "controller.enableSnapshotCompression" "controller.resources.livenessProbe" "externalSnapshotter.deletionPolicy" "nodeDriverRegistrar" }}
{{- $value := $.Values }}
{{- range splitList "." . }}
{{- $value = index ($value | default dict) . }}
{{- end }}
{{- if not (kindIs "invalid" $value) }}
{{- $found = append $found . }}
{{- end }}
{{- end }}
{{- join ", " $found }}
{{- end }}
